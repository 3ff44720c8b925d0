"""Provide names and colours of the parts of a training step."""

from __future__ import annotations

from escala.analysis.attribution import PARTS, UNEXPLAINED
from escala.report.figures.common import palette

NAMES = {
    "input": "input",
    "dispatch": "into and out of\nthe compiled step",
    "compute": "forward and backward",
    "optimiser": "optimiser",
    "skew": "waiting for the\nslowest rank",
    "transfer": "transfer and reduction",
    "copies": "copies to and from\nfusion buffers",
    "negotiation": "negotiation and cycle",
    UNEXPLAINED: "unexplained",
}
COLOURS = palette(PARTS) | {UNEXPLAINED: (0.75, 0.75, 0.75)}
