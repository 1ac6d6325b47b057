from collections.abc import Callable, Iterable

list_of_moto_modules: Callable[[], Iterable[str]]
