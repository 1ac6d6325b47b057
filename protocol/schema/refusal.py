"""Error response of a long request, built in steps: for one part of the request after another, and joined.

Most handlers' ``error_response`` is a plain function that builds an error for each element of a request. For 50,000
elements that takes up to 35 ms. Here it is called for parts of the request, in order: copies with at most PART_ELEMENTS
whole elements in all their arrays. The response to each part is added to the response to those before it. A part
may begin within an element, such as a topic whose first partitions are in the part before: the two responses for that
element become one. So the result is that of one call for the whole request.

That is true of a response whose arrays have an element for each element of the request's. Other APIs build their error
response in steps of their own (a generator), or their requests have too few elements to be cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from types import GeneratorType
from typing import Any, NamedTuple

from tidelog.protocol.errors import KafkaError
from tidelog.protocol.schema.copies import with_fields
from tidelog.protocol.schema.fields import Struct

PART_ELEMENTS = 256


class Part(NamedTuple):
    """A copy of a struct with some of its elements."""

    struct: Any
    depth: int
    """Number of nested structs that continue the part before: 0 for the first part, 1 for the struct itself, 2 if its
    first element continues, too."""


def refuse_in_steps(
    error_response: Callable[[Any, KafkaError], Any], request: Any, error: KafkaError, max_elements: int = PART_ELEMENTS
) -> Generator[Any, None, Any]:
    """Build the error response of a request, for at most ``max_elements`` whole elements in each step."""
    joined: Any = None
    for part in cut(request, max_elements):
        response = error_response(part.struct, error)
        if response.__class__ is GeneratorType:  # this API builds its response in steps of its own
            response.close()
            return (yield from error_response(request, error))
        if joined is None:
            joined = response
        else:
            join(joined, response, part.depth)
        yield None
    return joined


def cut(struct: Any, max_elements: int) -> Iterator[Part]:
    """Cut a struct into parts with at most ``max_elements`` whole elements each, in order."""
    if weight(struct, max_elements) <= max_elements:
        yield Part(struct, 0)
        return
    names = array_names(struct)
    bare = with_fields(struct, **{name: [] for name in names if getattr(struct, name) is not None})
    is_first = True
    for name in names:
        for elements, depth in runs(getattr(struct, name) or (), max_elements):
            yield Part(with_fields(bare, **{name: elements}), 0 if is_first else 1 + depth)
            is_first = False


def runs(elements: Any, max_elements: int) -> Iterator[tuple[list[Any], int]]:
    """Cut an array into runs with at most ``max_elements`` whole elements in all; yield each with the ``Part.depth`` of
    its first element, 0 if that begins in the run."""
    run: list[Any] = []
    run_weight = 0
    for element in elements:
        found = weight(element, max_elements)
        if run and run_weight + found > max_elements:
            yield run, 0
            run, run_weight = [], 0
        if found > max_elements:
            for part in cut(element, max_elements):
                yield [part.struct], part.depth
        else:
            run.append(element)
            run_weight += found
    if run:
        yield run, 0


def weight(element: Any, max_elements: int) -> int:
    """Count an element and the elements of its arrays; stop when there are more than ``max_elements``."""
    found = 1
    for name in array_names(element):
        value = getattr(element, name) or ()
        if value and isinstance(value[0], Struct) and array_names(value[0]):
            for inner in value:
                found += weight(inner, max_elements - found)
                if found > max_elements:
                    return found
        else:
            found += len(value)
    return found


def array_names(element: Any) -> list[str]:
    """Return the names of a struct's arrays; none for a value of another kind."""
    return [field.name for field in element.FIELDS if field.kind == "array"] if isinstance(element, Struct) else []


def join(joined: Any, part: Any, depth: int) -> None:
    """Add the elements of a part's response to those of ``joined``. With a :attr:`Part.depth` of 2 or more the part's
    first element continues the last one of ``joined``.
    """
    for name in array_names(joined):
        elements = getattr(part, name)
        if not elements:
            continue
        before = getattr(joined, name)
        continues = depth > 1 and bool(before)
        if continues:
            join(before[-1], elements[0], depth - 1)
        before += elements[1:] if continues else elements
