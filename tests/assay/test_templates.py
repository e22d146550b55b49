"""Rendering templates: both engines, clear errors, and nothing that a template may not do."""

from __future__ import annotations

import pytest

from assay.errors import BadInputError, UsageError
from assay.templates import LONGEST, check_template, render_template, template_fields

FIELDS = {"text": "2 + 2?", "choices": ["3", "4"], "target": "4"}


def render(template: str, engine: str = "jinja", /, **values: object) -> str:
    return render_template(template, engine, {**FIELDS, **values}, name="t", prompt="p")


def test_both_engines_put_fields_in() -> None:
    assert render("Q: {text}\nA: {{}} {1.5}", "format") == "Q: 2 + 2?\nA: {{}} {1.5}"
    assert render("Q: {{ text }}{% for c in choices %}\n{{ loop.index }}. {{ c }}{% endfor %}") == (
        "Q: 2 + 2?\n1. 3\n2. 4"
    )


def test_a_prompt_is_data_whatever_it_holds() -> None:
    assert render("{text}", "format", text="{target} {{ 7 * 7 }}") == "{target} {{ 7 * 7 }}"
    assert render("{{ text }}", text="{{ 7 * 7 }} <b>") == "{{ 7 * 7 }} <b>"


def test_fields_are_those_that_are_read() -> None:
    assert template_fields("{text} {a}", "format") == {"text", "a"}
    assert template_fields("{{ text }}{% for c in choices %}{{ c }}{% endfor %}{{ range(3) }}", "jinja") == {
        "text",
        "choices",
    }


@pytest.mark.parametrize("engine", ["format", "jinja"])
def test_a_missing_field_is_named_with_the_prompt(engine: str) -> None:
    text = "{text} {hint}" if engine == "format" else "{{ text }} {{ hint }}"
    with pytest.raises(BadInputError, match="names the field 'hint', prompt 'p' has none"):
        render(text, engine)


@pytest.mark.parametrize(
    "text",
    [
        "{{ text.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ choices.append('5') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ text * 100000000 }}",
        "{{ 10 ** 100000 }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ text | center(1000000000) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum() }}",
        "{{ 1 // 0 }}",
        "{% for i in range(99999) %}{{ text * 200 }}{% endfor %}",
        "{{ '{0.__class__}'.format(text) }}",
    ],
)
def test_what_templates_may_not_do_is_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        render("{{ text }}" + text)


def test_long_output_stops_early() -> None:
    with pytest.raises(BadInputError, match=f"longer than {LONGEST:,} characters"):
        render("{% for i in range(9999) %}{{ text * 100 }}{% endfor %}")


@pytest.mark.parametrize(
    ("text", "engine", "error", "message"),
    [
        ("no field", "format", BadInputError, "names no field"),
        ("{{ text", "jinja", BadInputError, "not a Jinja2 template"),
        ("{{ text }}", "mako", UsageError, "unknown template engine 'mako'"),
        ("{text}" * 20_000, "format", BadInputError, "longer than"),
    ],
)
def test_bad_templates_are_refused_before_they_are_stored(
    text: str, engine: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_template(text, engine, "t")
