from __future__ import annotations

from pathlib import Path

from benchmarks.report import markdown_table, update_section


def test_a_section_is_replaced_where_it_stands(tmp_path: Path):
    document = tmp_path / "docs" / "benchmarks.md"
    for title, value in (("First", 1), ("Second", 2), ("First", 3.14159)):
        table = markdown_table(["a"], [[value]])
        update_section(title, f"run {title}", table, data="none", seeds="0", document=document)
    text = document.read_text()
    assert text.startswith("# Benchmarks\n")
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## First", "## Second"]
    assert "| 3.14 |" in text
    assert "| 1 |" not in text
    assert text.count("- Command: `run First`") == 1


def test_writing_the_same_section_again_changes_nothing(tmp_path: Path):
    document = tmp_path / "benchmarks.md"
    texts = []
    for _ in range(2):
        update_section("A", "run", "| a |", data="none", notes="a note", document=document)
        texts.append(document.read_text())
    assert texts[0] == texts[1]
