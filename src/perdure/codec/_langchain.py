"""LangChain's messages as values: they are pydantic models, so registering them is all it takes."""

import inspect

from perdure.codec._registry import register_type
from perdure.errors import UsageError


def register_langchain() -> tuple[type, ...]:
    """Allow messages of LangChain to be stored in this process, chunks of them too.

    They come back exactly: contents, tool calls, `additional_kwargs`, metadata, ids, artifacts.
    Needed where no annotation names the classes (a field of type `list`, a result of an effect).
    The stored names are those that an annotation gives them. Idempotent.

    Returns:
        The classes, by name.

    Raises:
        UsageError: langchain-core is not installed.
    """
    try:
        from langchain_core import messages  # noqa: PLC0415  # an extra, and slow to import
    except ImportError as error:
        msg = "register_langchain() needs langchain-core: pip install 'perdure[langchain]'"
        raise UsageError(msg) from error
    found = [getattr(messages, name) for name in sorted(messages.__all__)]
    classes = tuple(
        each for each in found if inspect.isclass(each) and issubclass(each, messages.BaseMessage)
    )
    for cls in classes:
        register_type(cls)
    return classes
