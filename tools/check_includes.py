#!/usr/bin/env python3
"""Checks who includes whom. Usage: check_includes.py [ROOT]

The module graph is read from the qkv_module calls in CMakeLists.txt, so that there is one place to change it:
- src/NAME/ includes NAME, the modules that NAME lists, qkvshare/, and the libraries that it or those modules list;
- headers of llama.cpp are for modules that list qkv::llama (and for tests/);
- include/qkvshare/ includes itself and the standard library, nothing else;
- quoted paths start at a root ("base/hash.h"): none is relative to the including file;
- a header has #pragma once, but for those that Highway includes once for each target (_inl.h), and nothing but tests
  includes tests/.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
MODULE = re.compile(r"^qkv_module\((\w+)([^)]*)\)", re.MULTILINE)
LLAMA_COMMON = ("chat|common|sampling|json|json-schema|json-schema-to-grammar|peg-parser|unicode|speculative|arg|log|"
                "reasoning-budget|ngram-cache|download|preset|console")
# Headers by the library that brings them, as named in CMakeLists.txt.
LIBRARIES = {
    "qkv::llama": re.compile(rf"(llama|ggml|gguf)[\w-]*\.h$|(jinja|minja)/|({LLAMA_COMMON})\.h$"),
    "nlohmann_json::nlohmann_json": re.compile(r"nlohmann/"),
    "qkv::highway": re.compile(r"hwy/"),
    "qkv::cli11": re.compile(r"CLI/"),
    "qkv::yaml": re.compile(r"yaml-cpp/"),
    "fmt::fmt": re.compile(r"fmt/"),
    "qkv::sodium": re.compile(r"sodium(/|\.h$)"),
    "qkv::xxhash": re.compile(r"xxh(ash|3)\.h$"),
}
STANDARD = re.compile(r"[a-z_0-9]+$|std(bool|def|int)\.h$")
EVERYTHING = ("tests", "bench", "fuzz")  # folders that may include any module


def read_graph(root):
    """{module: (modules it sees, libraries it sees)}, both with what these see in turn."""
    graph = {}
    for name, arguments in MODULE.findall((root / "CMakeLists.txt").read_text(encoding="utf-8")):
        words = arguments.split()
        modules, libraries = {name}, {w for w in words if "::" in w}
        # PRIVATE_DEPS stay with the module that lists them.
        public = words[:words.index("PRIVATE_DEPS")] if "PRIVATE_DEPS" in words else words
        for word in public:
            if word in graph:
                modules.add(word)
                libraries |= graph[word][1] - graph[word][2]
        private = {w for w in words if "::" in w and w not in public}
        graph[name] = (modules, libraries, private)
    return {name: (modules, libraries) for name, (modules, libraries, _) in graph.items()}


def library_of(header):
    return next((lib for lib, pattern in LIBRARIES.items() if pattern.match(header)), None)


def check_include(root, path, bracket, header, graph):
    """What is wrong with one include of a file, or None."""
    folder = path.relative_to(root).parts[0]
    is_test = folder == "tests" or path.name.endswith("_test.cc")
    first = header.split("/")[0]
    if header.startswith((".", "/")) or "/../" in header:
        return "relative or absolute path: start at src/ or include/"
    if folder == "include":
        ours = bracket == '"' and header.startswith("qkvshare/")
        if not ours and not (bracket == "<" and STANDARD.match(header)):
            return "public headers include qkvshare/ and the standard library only"
        return None
    module = path.relative_to(root).parts[1] if folder == "src" else None
    if module is not None and module not in graph:
        return f"CMakeLists.txt has no qkv_module({module} ...)"
    library = library_of(header)
    if library and not (bracket == '"' and first in graph and "/" in header):
        if module and library not in graph[module][1]:
            return f"src/{module} does not list {library} in CMakeLists.txt"
        if folder in ("bench", "fuzz") and library == "qkv::llama":
            return "only src/runtime and tests/ include llama.cpp"
        return None
    if bracket == "<":
        return None
    if header.startswith("qkvshare/"):
        return None
    if first in EVERYTHING and "/" in header:
        return None if is_test or first == folder else f"{first}/ is for tests only"
    if first not in graph or "/" not in header:
        return 'not a path from a root: write "module/file.h"'
    if module and first not in graph[module][0]:
        return f"src/{module} may not include src/{first}: see the module graph in CMakeLists.txt"
    return None


def check_tree(root):
    """All violations below root, as "file:line: reason" lines."""
    graph = read_graph(root)
    errors = []
    for folder in ("include", "src", *EVERYTHING):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".hpp", ".cc"):
                continue
            text = path.read_text(encoding="utf-8")
            name = path.relative_to(root)
            if path.suffix != ".cc" and not path.stem.endswith("_inl") and not re.search(r"^#pragma once$", text, re.MULTILINE):
                errors.append(f"{name}:1: no #pragma once")
            for match in INCLUDE.finditer(text):
                reason = check_include(root, path, match.group(1), match.group(2), graph)
                if reason:
                    line = text.count("\n", 0, match.start(2)) + 1
                    errors.append(f"{name}:{line}: {match.group(2)}: {reason}")
    return errors


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    errors = check_tree(root)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
