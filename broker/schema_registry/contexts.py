"""Contexts of subjects: the subject S of a context is called ``:.CONTEXT:S``, and ``S`` in the default context."""

from __future__ import annotations

DEFAULT = "."


def context_prefix(context: str) -> str:
    """Return the prefix of the subjects of a context, whose name may have colons around it and lack its dot."""
    name = context.strip(":")
    name = name if name.startswith(".") else f".{name}"
    return "" if name == DEFAULT else f":{name}:"


def context_in(subject: str) -> str:
    """Return the prefix of a subject that names its context; empty if it has none."""
    end = subject.find(":", 1)
    return subject[: end + 1] if subject.startswith(":.") and end > 0 else ""


def written_in(subject: str, context: str) -> str:
    """Return a subject as a reference in a schema of ``context`` names it. A subject in the default context gets
    ``:.:`` if the schema is in another one."""
    return f":{DEFAULT}:{subject}" if context and not context_in(subject) else subject


def qualify(subject: str, prefix: str) -> str:
    """Return a subject with its context: the one it names, else ``prefix``."""
    own = context_in(subject)
    if not own:
        return prefix + subject
    return subject if own != f":{DEFAULT}:" else subject.removeprefix(own)
