"""Figures of all peers, as JSON lines, in one table; ours comes first and is the measure."""

import json
import sys

rows = {}
for line in sys.stdin:
    if line.startswith("{"):
        figures = json.loads(line)
        rows.setdefault(figures["name"], {})[figures["what"], figures["workers"]] = figures


def percentile(waits, percent):
    return sorted(waits)[round((len(waits) - 1) * percent / 100)]


def jain(shares):
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else float("nan")


HEAD = [
    "what",
    "cycles/s, 1 worker",
    "cycles/s, 64 workers",
    "grants/s, one key, 64 waiters",
    "p50 of a wait",
    "p99 of a wait",
    "Jain's index",
]
table = [HEAD]
for name, found in rows.items():
    hot = found["hot", 64]
    waits = [wait for own in hot["waits"] for wait in own]
    table.append([
        name,
        f"{found['distinct', 1]['rate']:,.0f}",
        f"{found['distinct', 64]['rate']:,.0f}",
        f"{hot['rate']:,.0f}",
        f"{percentile(waits, 50) * 1000:,.1f} ms",
        f"{percentile(waits, 99) * 1000:,.1f} ms",
        f"{jain([len(own) - 1 for own in hot['waits']]):.3f}",
    ])
widths = [max(len(row[column]) for row in table) for column in range(len(HEAD))]
for number, row in enumerate(table):
    print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |")
    if number == 0:
        print("| " + " | ".join("-" * width for width in widths) + " |")
