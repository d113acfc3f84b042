#!/usr/bin/env python3
"""Trains a learned controller on labels of `qkvshare eval sensitivity`, and writes its file.

    tools/train_controller.py labels.jsonl [more.jsonl] --name mine -o mine.json

A network of two layers (inputs -> 16 tanh -> 1) learns the logarithm of the KL that lowering one token costs, from the
logarithms of the token's features. Whole prompts are held out; on these the script prints how well the network and the
closed form order the tokens of a context (Spearman's rank correlation, mean over contexts) and how far their logarithms
are off (root mean square, after the constant that fits best). docs/policies.md says what is done with the file. The same
labels and flags give the same file on one machine. Needs NumPy (1.22 or later).
"""

import argparse
import hashlib
import json
import math
import os
import re
import sys

try:
    import numpy as np
except ImportError:
    sys.exit("tools/train_controller.py needs NumPy: pip install numpy")

PAPER = ["attention", "variance", "entropy", "rarity", "confidence", "next_entropy"]
KNOWN = [*PAPER, "cost"]
# Added before the logarithm: what does not count any more, in the unit of the input.
OFFSETS = {"attention": 1e-3, "variance": 1e-3, "entropy": 1e-3, "rarity": 1e-2, "confidence": 1e-4, "next_entropy": 1e-3,
           "cost": 1e-8}
MOST_HIDDEN = 1024  # as kMaxHidden of src/policy/controller.cc
LIMIT = 4.0  # as kInputLimit of src/policy/controller.h
KIND = "qkvshare_sensitivity"
SAME = ["level", "qkvshare_sensitivity"]  # of headers that go together


def fail(what):
    sys.exit(f"error: {what}")


def read_labels(path):
    """Header and lines of one file."""
    header, lines = None, []
    try:
        text = open(path, encoding="utf-8").read()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path}: {error}")
    for number, line in enumerate(text.splitlines(), 1):
        try:
            value = json.loads(line)
            if header is None:
                if value[KIND] != 1:
                    fail(f"{path}: labels of version {value[KIND]}; this script reads version 1")
                header = value
            elif "produced_by" not in value:
                numbers = [value[name] for name in [*KNOWN, "level_cost", "kl", "floor"]]
                if not all(isinstance(x, (int, float)) and math.isfinite(x) and x >= 0 for x in numbers):
                    fail(f"{path}: line {number} holds something else than numbers from 0")
                lines.append(value)
        except (ValueError, KeyError, TypeError):
            fail(f"{path}: line {number} is no line of `qkvshare eval sensitivity`")
    if header is None or not lines:
        fail(f"{path}: there are no labels")
    return header, lines


class Labels:
    """Of all files: a row a token."""

    def __init__(self, paths):
        self.headers, self.lines, contexts = [], [], {}
        prompts, groups = [], []
        for path in paths:
            header, lines = read_labels(path)
            if self.headers and any(header.get(key) != self.headers[0].get(key) for key in SAME):
                fail(f"{path}: another level than {paths[0]}; train on labels of one level")
            self.headers.append(header)
            self.lines += lines
            for line in lines:
                # A problem is held out for all models, or for none; the allocator compares tokens of one context.
                prompts.append(line["prompt"])
                groups.append(contexts.setdefault((path, line["prompt"]), len(contexts)))
        self.prompts, self.contexts = np.array(prompts), np.array(groups)

    def column(self, name):
        return np.array([line[name] for line in self.lines], dtype=float)

    def target(self):
        """Logarithm of the KL; what lies below the noise floor is not told apart."""
        return np.log(self.column("kl") + 0.1 * self.column("floor") + 1e-12)


def inputs_of(labels, names):
    return np.stack([np.log(labels.column(name) + OFFSETS[name]) for name in names], axis=1)


def hold_out(prompts, share, seed):
    """True for the rows of prompts that are held out: at least one, and never all."""
    unique = np.array(sorted(set(prompts)))
    if len(unique) < 2:
        fail("labels of one prompt cannot be split: measure more prompts")
    order = np.random.default_rng(seed).permutation(len(unique))
    count = min(max(round(share * len(unique)), 1), len(unique) - 1)
    return np.isin(prompts, unique[order[:count]])


class Network:
    def __init__(self, inputs, hidden, seed):
        random = np.random.default_rng(seed)
        self.parts = [random.normal(0, 1 / math.sqrt(inputs), (hidden, inputs)), np.zeros(hidden),
                      random.normal(0, 1 / math.sqrt(hidden), hidden), np.zeros(1)]

    def predict(self, z):
        hidden, bias, output, output_bias = self.parts
        return np.tanh(z @ hidden.T + bias) @ output + output_bias[0]

    def gradients(self, z, target, weight, decay):
        """Of the weighted mean of a Huber loss, which single wild labels do not rule."""
        hidden, bias, output, output_bias = self.parts
        h = np.tanh(z @ hidden.T + bias)
        error = h @ output + output_bias[0] - target
        slope = np.clip(error, -2, 2) * weight
        back = np.outer(slope, output) * (1 - h * h)
        return [back.T @ z + decay * hidden, back.sum(0), h.T @ slope + decay * output, np.array([slope.sum()])]


def train(network, z, target, weight, steps, decay):
    """Adam over all rows, with a rate that falls to 0."""
    weight = weight / weight.sum()
    first = [np.zeros_like(part) for part in network.parts]
    second = [np.zeros_like(part) for part in network.parts]
    for step in range(1, steps + 1):
        rate = 0.01 * 0.5 * (1 + math.cos(math.pi * step / steps))
        for i, gradient in enumerate(network.gradients(z, target, weight, decay)):
            first[i] = 0.9 * first[i] + 0.1 * gradient
            second[i] = 0.999 * second[i] + 0.001 * gradient**2
            mean = first[i] / (1 - 0.9**step)
            spread = second[i] / (1 - 0.999**step)
            network.parts[i] -= rate * mean / (np.sqrt(spread) + 1e-8)


def ranks(values):
    """Equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def rank_correlation(a, b, groups):
    """Spearman's, mean over groups of two and more."""
    found = []
    for group in np.unique(groups):
        rows = groups == group
        if rows.sum() < 2:
            continue
        x, y = ranks(a[rows]), ranks(b[rows])
        x, y = x - x.mean(), y - y.mean()
        size = math.sqrt((x @ x) * (y @ y))
        found.append(x @ y / size if size > 0 else 0.0)
    return float(np.mean(found)) if found else 0.0


def log_error(prediction, target):
    error = target - prediction
    return float(np.sqrt(np.mean((error - error.mean())**2)))


def figures(prediction, target, groups):
    return {"rank_correlation": round(rank_correlation(prediction, target, groups), 4),
            "log_error": round(log_error(prediction, target), 4)}


def digest(paths):
    hasher = hashlib.blake2b(digest_size=32)
    for path in paths:
        hasher.update(open(path, "rb").read())
    return hasher.hexdigest()


def numbers(array):
    return [numbers(row) for row in array] if array.ndim > 1 else [float(f"{x:.9g}") for x in array]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", nargs="+", help="files of `qkvshare eval sensitivity -o`")
    parser.add_argument("-o", "--output", required=True, help="the controller's file to write")
    parser.add_argument("--name", help="of the controller (default: of the file)")
    parser.add_argument("--inputs", default=",".join(PAPER),
                        help=f"some of {','.join(KNOWN)} (default: the paper's six; cost is the closed form)")
    parser.add_argument("--hidden", type=int, default=16, help="units of the hidden layer (default 16)")
    parser.add_argument("--steps", type=int, default=4000, help="of training (default 4000)")
    parser.add_argument("--decay", type=float, default=0.1, help="weight decay (default 0.1)")
    parser.add_argument("--power", type=float, default=0.25,
                        help="a label counts by its KL to this power: tokens that matter, more (default 0.25)")
    parser.add_argument("--held-out", type=float, default=0.25, help="share of the prompts to hold out (default 0.25)")
    parser.add_argument("--seed", type=int, default=1, help="of the split and the first weights (default 1)")
    flags = parser.parse_args()
    names = flags.inputs.split(",")
    if not set(names) <= set(KNOWN) or len(set(names)) != len(names):
        fail(f"--inputs {flags.inputs}: choose from {','.join(KNOWN)}, each once")
    if os.path.abspath(flags.output) in [os.path.abspath(path) for path in flags.labels]:
        fail(f"{flags.output}: the output is one of the inputs")
    if not 1 <= flags.hidden <= MOST_HIDDEN or flags.steps < 1 or not 0 < flags.held_out < 1:
        fail(f"--hidden is 1 to {MOST_HIDDEN}, --steps 1 or more, --held-out between 0 and 1")
    name = flags.name or os.path.splitext(os.path.basename(flags.output))[0]
    if not re.fullmatch("[A-Za-z0-9._-]{1,64}", name):
        fail(f"the controller cannot be called '{name}': give a --name of 1 to 64 letters, digits, '-', '_' and '.'")

    labels = Labels(flags.labels)
    raw, target = inputs_of(labels, names), labels.target()
    test = hold_out(labels.prompts, flags.held_out, flags.seed)
    means = raw[~test].mean(0)
    scales = np.maximum(raw[~test].std(0), 1e-3)
    z = np.clip((raw - means) / scales, -LIMIT, LIMIT)
    weight = np.exp(flags.power * (target - target[~test].mean()))
    network = Network(len(names), flags.hidden, flags.seed)
    network.parts[3][0] = np.average(target[~test], weights=weight[~test])
    train(network, z[~test], target[~test], weight[~test], flags.steps, flags.decay)

    closed = np.log(labels.column("level_cost") + OFFSETS["cost"])
    groups, prediction = labels.contexts[test], network.predict(z)
    held_out = {"network": figures(prediction[test], target[test], groups),
                "closed_form": figures(closed[test], target[test], groups)}
    held_out |= {name: figures(raw[test, i], target[test], groups) for i, name in enumerate(names)}
    counts = {"prompts": len(set(labels.prompts[~test])), "tokens": int((~test).sum()),
              "held_out_prompts": len(set(labels.prompts[test])), "held_out_tokens": int(test.sum())}
    hidden, bias, output, output_bias = network.parts
    controller = {
        "qkvshare_controller": 1,
        "name": name,
        "inputs": names,
        "offsets": [OFFSETS[name] for name in names],
        "means": numbers(means),
        "scales": numbers(scales),
        "activation": "tanh",
        "hidden": {"weights": numbers(hidden), "bias": numbers(bias)},
        "output": {"weights": numbers(output), "bias": float(f"{output_bias[0]:.9g}")},
        "trained_on": {
            "labels": [{"model": header.get("model"), "model_fingerprint": header["model_fingerprint"],
                        "weights": header.get("weights"), "level": header["level"], "context": header.get("context"),
                        "seed": header.get("seed"), "input": header.get("input")} for header in labels.headers],
            "labels_digest": digest(flags.labels),
            **counts,
            "seed": flags.seed, "steps": flags.steps, "decay": flags.decay, "power": flags.power,
            "train": figures(prediction[~test], target[~test], labels.contexts[~test]),
        },
        "held_out": held_out,
    }
    with open(flags.output, "w", encoding="utf-8") as file:
        json.dump(controller, file, indent=1)
        file.write("\n")
    print(f"trained on {counts['tokens']} tokens of {counts['prompts']} prompts; held out: {counts['held_out_tokens']} "
          f"tokens of {counts['held_out_prompts']}")
    print(f"{'held out':<16} {'rank correlation':>16} {'log error':>10}")
    for name, row in held_out.items():
        print(f"{name:<16} {row['rank_correlation']:>16.3f} {row['log_error']:>10.3f}")


if __name__ == "__main__":
    main()
