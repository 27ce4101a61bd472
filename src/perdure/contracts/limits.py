"""How much of a project is read; what is larger is named in the report and left out."""

FILE_BYTES_MAX = 2_000_000
"""Bytes of one file. The largest hand-written source or manifest seen has 400 kB."""

FILES_MAX = 50_000
"""Files of one project that are looked at, by name."""

DEPTH_MAX = 24
"""Folders below the checked one."""

STORY_LINES_MAX = 8
"""Lines of evidence that the report for people shows of one finding; `--json` has all."""

YAML_BYTES_MAX = 300_000
"""Bytes of one YAML file. Reading costs about 10 us a byte; the largest manifest seen has 90 kB."""

YAML_TOTAL_MAX = 3_000_000
"""Characters of YAML of one project that are parsed; a file that would go beyond is left out."""

YAML_NODES_MAX = 60_000
"""Values of one YAML document; an alias counts once, so that bombs stay small."""

YAML_DEPTH_MAX = 40
"""Levels of one YAML document."""

YAML_BRACKETS_MAX = 300
"""Brackets that are open at once in a YAML file, those in texts too."""

SERVICES_MAX = 300
"""Services of one deployment. The largest seen has 30."""

YAML_FILES_MAX = 600
"""YAML files of one project that are read as manifests."""

MERGED_MAX = 50_000
"""Values that merging overrides and patches may visit, in one project."""

HEAD_LINES_MAX = 60
"""Lines of the comment at the head of a Compose file in which commands are looked for."""

OVERLAY_CHARACTERS_MAX = 100_000
"""Characters of a README or Makefile in which commands of Compose are looked for."""

OVERLAY_FILES_MAX = 400
"""Files of a project in which commands are looked for that start one Compose file alone."""

INCLUDES_MAX = 40
"""Compose files that one Compose file leads to, by include and extends."""

DOCKERFILE_BYTES_MAX = 500_000
"""Bytes of one Dockerfile. The largest seen has 40 kB."""

INSTRUCTIONS_MAX = 4_000
"""Instructions of one Dockerfile."""

DOCKERFILES_MAX = 300
"""Dockerfiles of one project."""

SCRIPT_BYTES_MAX = 200_000
"""Bytes of one start script, or of one `sh -c`."""

SHELL_DEPTH_MAX = 30
"""Levels of compound commands in one script."""

SHELL_BRANCHES_MAX = 64
"""Ways through one script that are followed; with more it is undecided."""

START_DEPTH_MAX = 12
"""Programs that start one another (`tini`, `uv run`, scripts, functions) in one container."""

TEXT_MAX = 4_000
"""Characters of one value after its variables are replaced."""

NESTED_VARIABLES_MAX = 12
"""Levels of `${A:-${B:-c}}`."""

ROOTS_MAX = 200
"""Deployment roots of one project."""

HELM_S = 20.0
"""Seconds that `helm template` may take."""

SOURCES_MAX = 150
"""Paths of one image that come from the project."""

CONFIG_MAP_CHARACTERS_MAX = 20_000
"""Characters of a ConfigMap; larger ones hold dashboards and certificates, no variables."""

DIGITS_MAX = 15
"""Digits of a whole number that a text says: ports, counts and bytes have fewer."""

NUMBER_CHARACTERS_MAX = 40
"""Characters of a number with a fraction."""

NUMBER_MAX = 1e15
"""The largest number that is believed; seconds, counts and bytes are smaller."""

EXPANDED_MAX = 600_000
"""Values and characters that one project's files become by merge keys, shared environments and
templates, beyond what is written in them. A large one makes 20,000."""

VARIABLE_COST = 5
"""What a variable of a service, or an instruction of a build, counts for: more than a value that
is only merged."""

COMMANDS_MAX = 500
"""Build commands of one project that are looked at."""

FIX_LINE_MAX = 2_000
"""Characters of a line that is edited."""

PLATFORM_FILES_MAX = 20
"""Files of Render, Fly, Railway and the like that are read of one project."""

PLATFORM_CHARACTERS_MAX = 100_000
"""Characters of one such file; the largest seen has 12,000."""

TOML_CHARACTERS_MAX = 200_000
"""Characters of a TOML file. The largest `pyproject.toml` seen has 40,000."""

TOML_DOTS_MAX = 60
"""Dots of one line of TOML outside of strings: a parser's time grows with their square."""

TOML_ALL_DOTS_MAX = 1_000
"""Dots of one line of TOML, also those that seem to be within strings."""

TOML_NUMBER_BITS_MAX = 256
"""Bits of a number in TOML; a larger one is no value that a setting has."""
