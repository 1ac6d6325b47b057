"""Contexts: subjects of one are called ``:.CONTEXT:S``, those of the default one ``S``."""

from __future__ import annotations

DEFAULT = "."


def context_prefix(context: str) -> str:
    """Return how the subjects of a context begin; a context may be named with its colons, and without its dot."""
    name = context.strip(":")
    name = name if name.startswith(".") else f".{name}"
    return "" if name == DEFAULT else f":{name}:"


def context_in(subject: str) -> str:
    """Return the beginning of a subject that names its context, empty for the default one."""
    end = subject.find(":", 1)
    return subject[: end + 1] if subject.startswith(":.") and end > 0 else ""


def written_in(subject: str, context: str) -> str:
    """Return a subject as a reference of a context's schema names it: one of the default context with ``:.:``."""
    return f":{DEFAULT}:{subject}" if context and not context_in(subject) else subject


def qualified(subject: str, prefix: str) -> str:
    """Return a subject with its context: the one that it names, else that of ``prefix``."""
    own = context_in(subject)
    if not own:
        return prefix + subject
    return subject if own != f":{DEFAULT}:" else subject.removeprefix(own)
