"""A late service (built at its first use) is built once, started only if it is used, and stopped only if built."""

from __future__ import annotations

import pytest

from tidelog.broker.loop.lazy import Begin, Lazy


class Built:
    """Builds services that note what is done with them."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def lazy(self, *, wanted: bool) -> Lazy[str]:
        async def stop(service: str) -> None:
            self.events.append(f"stop {service}")

        return Lazy(
            self.build,
            is_wanted=lambda: wanted,
            begins=Begin.LATER,
            begin=lambda service: self.events.append(f"begin {service}"),
            close=lambda service: self.events.append(f"close {service}"),
            stop=stop,
        )

    def build(self) -> str:
        self.events.append("build")
        return "service"


async def test_a_service_that_is_wanted_begins_and_ends() -> None:
    built = Built()
    lazy = built.lazy(wanted=True)
    lazy.begin_if_wanted()
    lazy.close()
    await lazy.stop()
    assert built.events == ["build", "begin service", "close service", "stop service"]


async def test_a_service_that_is_not_wanted_is_not_built() -> None:
    built = Built()
    lazy = built.lazy(wanted=False)
    lazy.begin_if_wanted()
    lazy.close()
    await lazy.stop()
    assert built.events == []
    assert lazy.made is None


def test_a_service_is_built_once() -> None:
    built = Built()
    lazy = built.lazy(wanted=False)
    assert lazy.get() is lazy.get() is lazy.made
    assert built.events == ["build"]


def test_a_service_that_could_not_be_built_is_built_by_the_next_call() -> None:
    answers: list[Exception | str] = [OSError("no room"), "service"]

    def build() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lazy = Lazy(build)
    with pytest.raises(OSError, match="no room"):
        lazy.get()
    assert lazy.made is None
    assert lazy.get() == "service"


async def test_a_service_without_an_end_just_ends() -> None:
    lazy = Lazy(lambda: "service")
    lazy.begin_if_wanted()
    assert lazy.made is None
    lazy.get()
    lazy.close()
    await lazy.stop()


async def test_a_service_that_fails_to_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Its error was once raised into the server, which then flushed no log."""

    def fail(_: str) -> None:
        raise AttributeError("a mistake of ours")

    async def fail_later(service: str) -> None:
        fail(service)

    lazy = Lazy(lambda: "service", close=fail, stop=fail_later)
    lazy.get()
    lazy.close()
    await lazy.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "str failed to close; the broker goes on stopping",
        "str failed to stop; the broker goes on stopping",
    ]
