"""Keystores and truststores of listeners, as the admin API sets them: the listeners check them before a change.

Listeners that encrypt register with ``watch``; without such listeners there is nothing to check. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from tidelog.broker.config.broker_config import BROKER_CONFIG_DEF, BrokerConfig
from tidelog.broker.config.changes import Change, Operation, apply_changes
from tidelog.broker.config.description import CLUSTER_DEFAULT, DynamicTexts
from tidelog.broker.config.keys.security import store_key_of
from tidelog.broker.config.resource_type import ResourceType
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import InvalidRequestError

T = TypeVar("T")


class Stores(Protocol):
    """Listeners whose keystores and truststores may be set while the broker runs."""

    def check(self, texts: Mapping[str, str], names: Collection[str], /) -> Callable[[], None]:
        """Return a function, to be run in a thread, that checks the stores which these keys set for the listeners with
        these names in lower case. This method and the function raise ConfigError.
        """
        ...

    def take_over(self, texts: Mapping[str, str], /) -> None:
        """Use the stores of these keys from now on."""
        ...

    def reload(self) -> None:
        """Read all stores again: a file may have changed, although its path has not."""
        ...


class DynamicStores:
    """The stores of a broker's listeners, and the keys that set them."""

    __slots__ = ("_config", "_stores", "_texts")

    def __init__(self, config: BrokerConfig, texts: DynamicTexts) -> None:
        self._config = config
        self._texts = texts
        self._stores: Stores | None = None

    def watch(self, stores: Stores) -> None:
        """Let these listeners check and use the stores that are set from now on."""
        self._stores = stores

    def check(self, kind: int, name: str, changes: Iterable[Change]) -> Callable[[], None] | None:
        """Return a function, to be run in a thread, that checks the stores that ``changes`` set; None if there is
        nothing to check.

        This method and the function raise InvalidRequestError; the method also raises what ``apply_changes`` raises.
        """
        stores, listed = self._stores, list(changes)
        names = {change.name.split(".")[2] for change in listed if store_key_of(change.name) is not None}
        if stores is None or kind != ResourceType.BROKER or name == CLUSTER_DEFAULT or not names:
            return None
        texts = {**self._texts.cluster, **apply_changes(BROKER_CONFIG_DEF, self._texts.node, listed)}
        wanted = self._config.listener_texts_with(texts)
        return partial(raise_as_invalid_request, raise_as_invalid_request(partial(stores.check, wanted, names)))

    def check_replacement(self, kind: int, name: str, texts: Mapping[str, str]) -> Callable[[], None] | None:
        """Return what ``check`` returns for a change that replaces all keys of a resource by ``texts``. Raises
        InvalidRequestError."""
        removed = [Change(key, Operation.DELETE, None) for key in self._texts.node if key not in texts]
        return self.check(kind, name, [*removed, *(Change(key, Operation.SET, text) for key, text in texts.items())])

    def follow(self) -> None:
        """Let the listeners use the stores that the keys in force name."""
        if self._stores is not None:
            self._stores.take_over(self._config.listener_texts())

    def reload(self) -> None:
        """Read the stores again, as a client has set their keys, even if to the same values."""
        if self._stores is not None:
            self._stores.reload()


def raise_as_invalid_request(check: Callable[[], T]) -> T:
    """Return the result of a check of stores. Any thread. Raises InvalidRequestError instead of ConfigError."""
    try:
        return check()
    except ConfigError as error:
        raise InvalidRequestError(f"Validation of dynamic config update of SSL stores failed: {error}") from error
