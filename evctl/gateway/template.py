"""Chat messages to text, by the model's own template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evctl.core.errors import EvctlError, UsageError


class _Strict(Undefined):
    """May be tested ("if tools") and never printed, so a missing field is not silent."""

    __str__ = Undefined._fail_with_undefined_error


class ChatTemplate:
    """A chat template, rendered in a sandbox that can neither reach nor change objects.

    The source is untrusted: it came with the weights. Raises EvctlError (EV-1501).
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=_Strict,
            extensions=["jinja2.ext.loopcontrols"],
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(source)
            self._names = _names(environment.parse(source))
        except (TemplateError, RecursionError) as error:
            raise _template_error(error) from error

    def reads(self, name: str) -> bool:
        """Whether it names a variable, an attribute or a key so."""
        return name in self._names

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The conversation as a prompt that a reply continues.

        Raises EvctlError (EV-1501) when the template refuses or cannot take the messages.
        """
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **variables
            )
        except Exception as error:  # a template may fail in any way its expressions can
            raise _template_error(error) from error


def _names(template: nodes.Template) -> frozenset[str]:
    variables = {node.name for node in template.find_all(nodes.Name)}
    attributes = {node.attr for node in template.find_all(nodes.Getattr)}
    keys = {node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str)}
    return frozenset(variables | attributes | keys)


def _to_json(value: Any, indent: int | None = None) -> str:
    """As chat templates expect it: jinja's own would escape <, > and everything beyond ASCII."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _template_error(error: Exception) -> EvctlError:
    return UsageError(
        what="the model's chat template cannot be rendered",
        why=str(error) or type(error).__name__,
        next_step="check that every message has a role and a text that the template takes",
        code="EV-1501",
    )
