"""What a service runs with where its durable saver surely can't be set up in this deployment."""

from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts, Degrade, Medium, Site
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.evidence import Confidence, Known, weakest
from perdure.contracts.rules._databases import database_of, host_of
from perdure.contracts.rules._redis import loads_modules, without_modules


def as_it_runs(code: CodeFacts, root: Root) -> CodeFacts:
    """Return the facts with the saver that is left, where the one that is chosen must fail.

    LangGraph's savers for Redis make indices when they are set up, which a Redis without its
    modules refuses. Who swallows that goes on with what the handler makes.
    """
    found = {id(site): _left(site, code, root) for site in code.sites if site.needs_modules}
    fallen = {key: one for key, one in found.items() if one is not None}
    if not fallen:
        return code
    instead = {id(other) for other, _site in fallen.values()}
    kept = [site for site in code.sites if id(site) not in fallen and id(site) not in instead]
    return replace(code, sites=(*kept, *(site for _other, site in fallen.values())))


def _left(site: Site, code: CodeFacts, root: Root) -> tuple[Site, Site] | None:
    """Return the site that a handler chooses, as it is and as it counts; `None`: it is not sure."""
    database = database_of(root, Medium.REDIS, site.location)
    redis = database.service if database is not None else None
    if site.chosen.value is not True or redis is None or not without_modules(redis, surely=True):
        return None
    if not _is_named(site.location, redis) or any(map(loads_modules, root.services)):
        return None
    for degrade in code.degrades:
        other = _chosen_by(degrade, site, code)
        if other is not None:
            image = replace(redis.image.evidence[-1], note=_NOTE) if redis.image.evidence else None
            steps = (*([image] if image is not None else []), *degrade.evidence[-3:])
            chosen = replace(
                site.chosen,
                confidence=weakest([site.chosen.confidence, Confidence.INFERRED]),
                evidence=(*site.chosen.evidence, *steps),
            )
            evidence = tuple(dict.fromkeys((*steps, *other.evidence)))
            return other, replace(other, chosen=chosen, is_served=site.is_served, evidence=evidence)
    return None


def _is_named(location: Known[str] | None, redis: Service) -> bool:
    """Whether the files that are deployed say the URL: no default, nor what may be set anew."""
    if location is None or location.confidence is not Confidence.PROVED or location.assumed:
        return False
    host = (host_of(location.value or "") or "").partition(".")[0]
    return bool(host) and host in {redis.name, *redis.aliases}


_NOTE = "this Redis has neither RediSearch nor RedisJSON, without which the saver can't be set up"


def _chosen_by(degrade: Degrade, site: Site, code: CodeFacts) -> Site | None:
    """Return the saver in memory that a swallowed failure of a site leads to."""
    made = degrade.made
    if degrade.cause != "failed" or degrade.when.value is not True or not degrade.sets_up:
        return None
    if made is None or not any((e.file, e.line) == (made.file, made.line) for e in site.evidence):
        return None
    last = degrade.evidence[-1]
    return next(
        (
            other
            for other in code.sites
            if other.medium is Medium.MEMORY
            and other.role is site.role
            and any((e.file, e.line) == (last.file, last.line) for e in other.evidence)
        ),
        None,
    )
