"""Advise which configuration to use for a goal within limits, or not to distribute at all.

| module | what it does |
|---|---|
| `candidates` | finds the time of each configuration, predicted or measured |
| `measured` | reads the tables of an experiment; measured ratios count before predictions |
| `choice` | selects one for a goal within limits |
| `changes` | finds what would have to change for several ranks to pay |
| `document` | answers the question of a user for an experiment |
| `text` | the answers in words, as lines of a job script, and as advice.json |

Configurations are compared for the same number of rows in a step, so they make the same updates.
"""
