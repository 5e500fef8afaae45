"""Completions for bash, zsh and fish, and the manual page, made from the table of tools."""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gdbext import __version__  # noqa: E402
from gdbext.hosts.cli import launcher  # noqa: E402
from gdbext.tools import table  # noqa: E402

OPTIONS = (
    "--pid",
    "--core",
    "--recording",
    "--record",
    "--sysroot",
    "--debugger",
    "--no-stop",
    "--measure-as-me",
    "--timeout",
    "--memory-limit",
    "--json",
    "--color",
    "--version",
    "--init-path",
    "--help",
)
"""The launcher's own, which stand in its usage."""
FILES = ("-c", "--core", "-r", "--recording", "--record", "--output", "--save", "--html", "--dot", "--metrics")
PIDS = ("-p", "--pid")
CHOICES = {"--debugger": "gdb lldb none", "--color": "auto always never", "--init-path": "gdb lldb"}
MADE = "made by scripts/gen_docs.py from the table of tools"


def names(row: table.ToolRow) -> list[str]:
    """The command, and its short name where it has one."""
    short = "" if row.mode == "program" else table.short_name(row)
    return [row.name, *([short] if short and short != row.name else [])]


def options(row: table.ToolRow) -> list[tuple[str, str]]:
    """Long options of a command, each with its help."""
    parser = table.parser_of(row)
    found = []
    for action in (each for each in parser._actions if each.help != SUPPRESS):
        for name in action.option_strings:
            if name.startswith("--"):
                meaning = (action.help or "").replace("%(default)s", str(action.default))
                found.append((name, " ".join(meaning.split())))
    return found


def bash() -> str:
    """The script for bash-completion."""
    commands = " ".join(name for row in table.TABLE for name in names(row))
    cases = "\n".join(
        f"    {'|'.join(names(row))}) words='{' '.join(name for name, _ in options(row))}' ;;" for row in table.TABLE
    )
    choices = "\n".join(
        f"    {name}) COMPREPLY=($(compgen -W '{words}' -- \"$current\")); return ;;" for name, words in CHOICES.items()
    )
    return f"""# bash completion of gdbext; {MADE}
_gdbext() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} word command= words=
  COMPREPLY=()
  case ${{COMP_WORDS[COMP_CWORD - 1]}} in
    {"|".join(PIDS)}) COMPREPLY=($(compgen -W "$(cd /proc && echo [0-9]*)" -- "$current")); return ;;
    {"|".join(FILES)}) COMPREPLY=($(compgen -f -- "$current")); return ;;
{choices}
  esac
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in
      --) return ;;
      {"|".join(commands.split())}) command=$word; break ;;
    esac
  done
  case $command in
    '') words='{commands} {" ".join(OPTIONS)}' ;;
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _gdbext gdbext dispatch
"""


def zsh() -> str:
    """The function _gdbext of zsh's completion."""
    described = "\n".join(f"      {_quoted(f'{name}:{row.summary}')}" for row in table.TABLE for name in names(row))
    cases = "\n".join(
        f"  ({'|'.join(names(row))}) compadd -- {' '.join(name for name, _ in options(row))} ;;" for row in table.TABLE
    )
    commands = "|".join(name for row in table.TABLE for name in names(row))
    choices = "\n".join(f"  ({name}) compadd -- {words}; return ;;" for name, words in CHOICES.items())
    return f"""#compdef gdbext dispatch
# zsh completion of gdbext; {MADE}
local word command=
local -a commands
case $words[CURRENT-1] in
  ({"|".join(PIDS)}) compadd -- /proc/<1->(:t); return ;;
  ({"|".join(FILES)}) _files; return ;;
{choices}
esac
for word in ${{words[2,CURRENT-1]}}; do
  case $word in
    (--) _normal; return ;;
    ({commands}) command=$word; break ;;
  esac
done
case $command in
  ('')
    commands=(
{described}
    )
    _describe command commands
    compadd -- {" ".join(OPTIONS)} ;;
{cases}
esac
"""


def fish() -> str:
    """The lines for fish."""
    return f"# fish completion of gdbext; {MADE}\n" + "".join(f"{line}\n" for line in _fish_lines())


def _fish_lines() -> Iterator[str]:
    every = " ".join(name for row in table.TABLE for name in names(row))
    head = "complete -c gdbext"
    first = f"not __fish_seen_subcommand_from {every}"
    yield "complete -c dispatch -w gdbext"
    yield f"{head} -s p -l pid -x -a '(__fish_complete_pids)' -d 'the process'"
    for name in OPTIONS:
        if name != "--pid":
            how = f" -x -a {_quoted(CHOICES[name])}" if name in CHOICES else " -r" if name in FILES else ""
            yield f"{head} -n {_quoted(first)} -l {name[2:]}{how}"
    for row in table.TABLE:
        for name in names(row):
            yield f"{head} -f -n {_quoted(first)} -a {name} -d {_quoted(row.summary)}"
        seen = f"__fish_seen_subcommand_from {' '.join(names(row))}"
        for name, meaning in options(row):
            yield f"{head} -n {_quoted(seen)} -l {name[2:]} -d {_quoted(meaning[:80])}"


def manual() -> str:
    """gdbext(1)."""
    parts = [
        f'.\\" {MADE}',
        f'.TH GDBEXT 1 "" "gdbext {__version__}" "User Commands"',
        ".SH NAME",
        "gdbext \\- explain what a hung or crashed PyTorch process is doing",
        ".SH SYNOPSIS",
        *_plain(launcher.usage("gdbext")),
        ".SH COMMANDS",
    ]
    for row in table.TABLE:
        parts += [f".SS {_roff(row.name)}", *_plain(table.help_text(row))]
    parts += [".SH SEE ALSO", "gdb(1), lldb(1), coredumpctl(1), timeout(1)"]
    return "\n".join(parts) + "\n"


def _plain(text: str) -> list[str]:
    return [".nf", *(_roff(line) for line in text.rstrip().split("\n")), ".fi"]


def _roff(line: str) -> str:
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "'\\''") + "'"


def files() -> dict[str, str]:
    """Path below share/ → contents."""
    return {
        "bash-completion/completions/gdbext": bash(),
        "zsh/site-functions/_gdbext": zsh(),
        "fish/vendor_completions.d/gdbext.fish": fish(),
        "man/man1/gdbext.1": manual(),
    }
