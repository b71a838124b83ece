"""Token counts, which a server may leave out or get wrong."""

from durable.providers._text import as_dict


def count(value: object, *path: str) -> int:
    """The number at this place of an answer, 0 where there is none."""
    for name in path:
        value = as_dict(value).get(name)
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else 0
