"""JSON texts that a decoder may choke on, and values of every JSON type."""

from __future__ import annotations

import json
import random

DEPTHS = (900, 1_100, 2_000)
"""About twice as deep as what ends a decoder with a small stack. The API server needs quadratic time: 0.5 s
for 2,000 levels."""
DEEPEST = 9_000
"""It accepts 10,000, and works on 9,000 for 12 s."""
LARGE = 1_300_000
"""Bytes of the largest values: etcd takes 1.5 MiB for an object."""
MANY_KEYS = {f"k{number}": number for number in range(100_000)}
"""In a list: else the API server works for ten seconds on the managedFields that come of it."""
EACH_TYPE = ("null", "true", "-1", "1.5", '"x"', "[]", "[1]", "{}", '{"a":1}')
CONTROLS = "\x1b[2J\x1b]0;pwn\x07\n\r\t\x00\u202e\u2066\u2028\u200f"


def deep(dice: random.Random) -> str:
    """A list or an object within another, thousands of times."""
    opening, closing = dice.choice((('{"a":', "}"), ('[{"b":', "}]"), ("[", "]")))
    depth = dice.choice(DEPTHS)
    return opening * depth + "1" + closing * depth


def nested(depth: int) -> str:
    """An object in an object, as managedFields have it."""
    return '{"f:a":' * depth + "{}" + "}" * depth


def fields(dice: random.Random) -> str:
    """What managedFields may have in fieldsV1: an object."""
    return dice.choice(
        (
            lambda: nested(dice.choice(DEPTHS)),
            lambda: r'{"f:\ud800":{},"f:\udfff\ud800":{}}',
            lambda: json.dumps({f"f:k{number}": {} for number in range(3_000)}),
            lambda: '{"f:a":{"v:1e999999":1e308}}',
            lambda: '{"f:' + "x" * LARGE + '":{}}',
        )
    )()


def text(dice: random.Random) -> str:
    """JSON of a string."""
    return dice.choice(
        (
            lambda: json.dumps(CONTROLS + "x"),
            lambda: r'"\ud800"',
            lambda: r'"\udfff\ud83d\u0041\ud83d\ude00"',
            lambda: json.dumps("x" * dice.choice((64, 5_000, 200_000))),
            lambda: json.dumps("9" * 5_000),
            lambda: '"1e999999999"',
            lambda: '"-1"',
            lambda: '""',
            lambda: json.dumps("[" * 9_000),
            lambda: json.dumps('{"version":1,"needed":1e999,"left_out":' + "9" * 4_000 + ',"newest":NaN}'),
            lambda: json.dumps(r'{"a":"\ud800"}'),
        )
    )()


def value(dice: random.Random) -> str:
    """JSON of any type."""
    return dice.choice(
        (
            lambda: dice.choice(("null", "true", "false", "0", "-1", "1.5", "1e300", "9" * 18, "[]", "{}")),
            lambda: text(dice),
            lambda: deep(dice),
            lambda: json.dumps([1] * 100_000),
            lambda: json.dumps([MANY_KEYS]),
            lambda: json.dumps("x" * LARGE),
            lambda: json.dumps([{"name": "a", "minMember": 1, "parent": "a"}] * 40),
            lambda: json.dumps([{"key": "a", "operator": "In", "values": ["b"] * 70}]),
        )
    )()


def yaml(dice: random.Random) -> str:
    """A text for a ConfigMap, which is to be YAML or JSON."""
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    return dice.choice(
        (
            lambda: bomb,
            lambda: "topologyAwareScheduling: " + "[" * 30_000,
            lambda: "topologyAwareScheduling: " + "{a: " * 9_000,
            lambda: 'policies: [{name: "\\ud800", weight: 1}]',
            lambda: "levels:\n" + "".join(f"- {{name: l{n}, label: a/l{n}}}\n" for n in range(3_000)),
            lambda: "? " * 9_000,
            lambda: "x" * 900_000,
            lambda: "[" * 9_000 + "]" * 9_000,
            lambda: '{"0":"' + CONTROLS + '"}',
            lambda: '{"a":' * 9_000 + "1" + "}" * 9_000,
            lambda: "[[1e999,NaN],[" + "9" * 5_000 + "]]",
        )
    )()
