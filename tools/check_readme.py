#!/usr/bin/env python3
"""Checks that README.md's first sh block is what a newcomer can run: make demo and make test, targets that exist."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main():
    match = re.search(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if not match:
        print("README.md has no ```sh block", file=sys.stderr)
        return 1
    targets = set()
    for rule in re.findall(r"^([\w ]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE):
        targets.update(rule.split())
    commands = [line.split("#")[0].strip() for line in match.group(1).splitlines()]
    errors = []
    for command in filter(None, commands):
        words = command.split()
        if words[0] != "make" or not set(words[1:]) <= targets:
            errors.append(f"README.md: '{command}' is not a make target of this Makefile")
    for wanted in ("make demo", "make test"):
        if wanted not in commands:
            errors.append(f"README.md: the first sh block lacks '{wanted}'")
    print("\n".join(errors), end="\n" if errors else "", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
