"""--help and the README's table name every setting, and can be read."""

import pytest

from sidecar.settings import flags_table, help_text
from sidecar.settings.model import GROUPS, SETTINGS, Settings


def test_the_groups_hold_every_field_of_the_settings_once() -> None:
    fields = [setting.field for setting in SETTINGS]
    assert sorted(fields) == sorted(Settings.model_fields)
    assert len(set(fields)) == len(fields)


@pytest.mark.parametrize("columns", [0, 60, 80, 100, 300])
def test_help_fits_the_terminal_and_never_passes_100_columns(columns: int) -> None:
    lines = help_text(columns).splitlines()
    assert max(map(len, lines)) <= max(72, min(columns, 100))
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_help_says_of_each_setting_what_it_is_and_what_it_is_by_default(setting: object) -> None:
    known = next(each for each in SETTINGS if each == setting)
    lines = help_text(100).splitlines()
    (first,) = (
        n for n, line in enumerate(lines) if line.startswith((f"  {known.name}=", f"  {known.name} "))
    )
    entry = lines[first]
    for line in lines[first + 1 :]:
        if not line.startswith("      "):
            break
        entry += " " + line.strip()
    assert known.facts.help in " ".join(entry.split())
    for note in (known.kind.show(known.default), known.facts.env, known.facts.formerly, known.standing()):
        assert (note or "") in entry


def test_help_is_grouped_with_the_main_job_first() -> None:
    headings = [
        line for line in help_text(100).splitlines() if line.endswith(":") and not line.startswith(" ")
    ]
    assert headings == [f"{group.title}:" for group in GROUPS]
    assert headings[:4] == ["Serving clients:", "Engines:", "KV transfer:", "Source guard:"]


def test_help_of_a_flag_reads_like_this() -> None:
    assert "\n".join(help_text(80).splitlines()[5:9]) == (
        "  --port=PORT                     Port that clients or the gateway connect to.\n"
        "                                  [default: 8000]\n"
        "  --host=HOST                     Address to listen on; empty: every interface,\n"
        "                                  IPv4 and IPv6."
    )


def test_the_flags_table_has_a_row_for_each_setting() -> None:
    rows = [line for line in flags_table().splitlines() if line.startswith("| ") and "| flag |" not in line]
    assert len(rows) == len(SETTINGS)
    for row, setting in zip(rows, SETTINGS, strict=True):
        cells = [cell.strip() for cell in row.replace(r"\|", "/").strip("|").split("|")]
        assert len(cells) == 4
        assert cells[0].startswith(f"`--{setting.flag}") if setting.facts.by_flag else cells[0] == ""
        assert cells[1] == (
            f"`{setting.kind.show(setting.default)}`" if setting.kind.show(setting.default) else ""
        )
        assert cells[2] == (f"`{setting.facts.env}`" if setting.facts.env else "")
        assert cells[3].startswith(setting.facts.help.replace("|", "/"))


def test_a_row_of_the_flags_table_reads_like_this() -> None:
    table = flags_table()
    assert "| `--p2p-connector-port=PORT` | `7777` | `P2P_CONNECTOR_PORT` | Port of the P2P tier" in table
    assert "| `--source-guard=on\\|off` | `on` |  | Pull only from a source whose P2P port accepts" in table
    assert "(yet only error) |" in table
    assert "Formerly `--vllm-port`. |" in table
