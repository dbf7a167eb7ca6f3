"""JSON of which one part is another."""

import json


def replaced(value, odd):
    """Copies of a JSON value in which one part, at any depth, is ``odd`` or is missing."""
    yield odd
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        rest = dict(value) if isinstance(value, dict) else list(value)
        for other in replaced(inner, odd):
            rest[key] = other
            yield json.loads(json.dumps(rest))
        del rest[key]
        yield rest
