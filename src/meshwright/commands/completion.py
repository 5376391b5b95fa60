"""``meshwright completion``: scripts by which shells complete commands, options and their values."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from meshwright.commands.parsers import command_parsers

_WHERE = {
    "bash": "source <(meshwright completion bash), in ~/.bashrc",
    "zsh": "source <(meshwright completion zsh), in ~/.zshrc after compinit",
    "fish": "meshwright completion fish > ~/.config/fish/completions/meshwright.fish",
}


class Option(NamedTuple):
    """An option of a command, in all its spellings, and the values it takes: words, or anything (a file, say)."""

    flags: tuple[str, ...]
    about: str
    takes_value: bool
    words: tuple[str, ...]


def describe(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    where = "; ".join(f"{shell}: {line}" for shell, line in _WHERE.items())
    parser.description = f"Print the script by which a shell completes meshwright's commands and options. {where}."
    parser.add_argument("shell", choices=tuple(_WHERE), help="which shell")
    parser.add_argument("--json", action="store_true", help="print the script as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    script = _SCRIPTS[args.shell](dict(command_parsers()))
    print(json.dumps({"shell": args.shell, "script": script}) if args.json else script, end="\n" if args.json else "")
    return 0


def options_of(parser: argparse.ArgumentParser) -> Iterator[Option]:
    """The options of a command."""
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            about = (action.help or "").replace("%%", "%").split(" (default")[0].replace("\n", " ")
            words = tuple(map(str, action.choices)) if action.choices is not None else ()
            yield Option(tuple(action.option_strings), about, action.nargs != 0, words)


def words_of(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """The words that a command's arguments may be, where these are known."""
    found = [word for action in parser._actions if not action.option_strings for word in action.choices or ()]
    return (*map(str, found), *getattr(parser, "words", ()))


Parsers = Mapping[str, argparse.ArgumentParser]


def _bash(parsers: Parsers) -> str:
    cases = []
    for name, parser in parsers.items():
        options = list(options_of(parser))
        flags = " ".join(flag for option in options for flag in option.flags)
        values = "".join(
            f"      {'|'.join(option.flags)}) words={_quoted(' '.join(option.words))} ;;\n"
            for option in options
            if option.words
        )
        files = "|".join(flag for option in options if option.takes_value and not option.words for flag in option.flags)
        values += f"      {files}) compopt -o default; COMPREPLY=(); return ;;\n" if files else ""
        cases.append(
            f'  {name})\n    case "$before" in\n{values}'
            f"      *) words={_quoted(' '.join(words_of(parser)))}; "
            f'[[ "$current" == -* ]] && words={_quoted(flags)} ;;\n    esac ;;\n'
        )
    return (
        "# bash completion of meshwright\n_meshwright() {\n"
        '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""\n'
        f'  if [ "$COMP_CWORD" -eq 1 ]; then\n    words={_quoted(" ".join([*parsers, "--help", "--version"]))}\n'
        '  else case "${COMP_WORDS[1]}" in\n' + "".join(cases) + "  esac; fi\n"
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))\n'
        '  if [ ${#COMPREPLY[@]} -eq 0 ] && [[ "$current" != -* ]]; then compopt -o default; fi\n}\n'
        "complete -F _meshwright meshwright\n"
    )


def _zsh(parsers: Parsers) -> str:
    commands = " ".join(_quoted(f"{name}:{_about(parser)}") for name, parser in parsers.items())
    cases = []
    for name, parser in parsers.items():
        lines = [_quoted("*: :_files")]
        if words_of(parser):
            lines = [_quoted(f"1: :({' '.join(words_of(parser))})")]
        for option in options_of(parser):
            about = option.about.replace("[", "(").replace("]", ")").replace(":", " ")
            words = f"({' '.join(option.words)})" if option.words else "_files"
            value = f":value:{words}" if option.takes_value else ""
            lines += [_quoted(f"{flag}[{about}]{value}") for flag in option.flags]
        cases.append(f"    {name}) _arguments " + " \\\n      ".join(lines) + " ;;\n")
    return (
        "#compdef meshwright\n_meshwright() {\n  if (( CURRENT == 2 )); then\n"
        f"    local -a commands=({commands})\n    _describe command commands\n    return\n  fi\n"
        '  local command="${words[2]}"\n  shift words; (( CURRENT-- ))\n  case "$command" in\n'
        + "".join(cases)
        + "  esac\n}\ncompdef _meshwright meshwright\n"
    )


def _fish(parsers: Parsers) -> str:
    lines = ["# fish completion of meshwright"]
    for name, parser in parsers.items():
        lines.append(f"complete -c meshwright -n __fish_use_subcommand -f -a {name} -d {_quoted(_about(parser))}")
    for name, parser in parsers.items():
        here = f"complete -c meshwright -n {_quoted(f'__fish_seen_subcommand_from {name}')}"
        if words_of(parser):
            lines.append(f"{here} -f -a {_quoted(' '.join(words_of(parser)))}")
        for option in options_of(parser):
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" if len(flag) == 2 else f"-o {flag[1:]}"
                for flag in option.flags
            )
            words = f" -x -a {_quoted(' '.join(option.words))}" if option.words else " -r" if option.takes_value else ""
            lines.append(f"{here} {flags}{words} -d {_quoted(option.about)}")
    return "\n".join(lines) + "\n"


def _about(parser: argparse.ArgumentParser) -> str:
    return (parser.description or "").split(". ")[0].split(": ")[0].rstrip(".")


def _quoted(text: str) -> str:
    """Text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


_SCRIPTS: dict[str, Callable[[Parsers], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
