"""The `site.toml` that a site finds in its kit: each rule with a comment for people who do not program."""

from __future__ import annotations

import json
from collections.abc import Sequence

# The smallest number of sites of which none can subtract itself from a sum and be left with one other.
_ENOUGH_SITES = 3

_TEXT = """\
# What site {site} lets others compute of its table. Nobody but this site can change it: read it before you start, and
# ask for help where a line is not clear. The site checks every rule itself before it computes anything, whatever the
# server and the analyst say. Lines that begin with # are comments.

# The table, relative to this file. It never leaves this machine. Best give one without names and other columns.
file = "{site}.csv"

# The columns that may be used. "all" is every column of the file; a list is better: ["age", "treatment"].
columns = {columns}

# What may be taken for a missing value in them, beside empty cells and NA, so that such rows are left out. List what
# marks a gap in your table and nothing else: whoever may leave out any rows learns of those that remain.
missing_values = {missing_values}

# WHO TAKES PART
{secure_sum}
{minimum_sites}

# The largest share that this site may have in an average (by its rows, unless the study says otherwise). With a share
# near 1 the average would be this site's own answer.
maximum_weight = 0.8

# HOW SMALL A GROUP MAY BE
# Take part only if at least so many rows have no gap. Choose what your organisation would publish a mean of.
minimum_rows = 10

# Of a column of words, codes, or yes and no, the outcome too, no value may stand in only 1 to 4 rows here: such a
# column is refused, and no message says which value it was. To use it all the same, put rare values together, for
# example as "other", in a copy of the file.
minimum_rows_per_level = 5

# Refuse a column of words with more different values than this here: it is likely to hold names or free text.
maximum_levels = 40

# Refuse a model that has more parameters than one for each so many rows: with few rows for each, results come close
# to single persons.
rows_per_parameter = 10

# HOW MUCH MAY BE ASKED
# Many answers together tell more than each. All of them are written into ledger.jsonl in this kit, which
# `fahmc federation ledger KIT` shows: who asked what, when, and what is left. Counting starts again for another content
# of the file.
maximum_rounds = 20000      # rounds of one run, a few thousand of which are usual
maximum_runs = 10           # different runs, and different choices of columns
maximum_questions = 100     # different questions about results, such as whether the model fits
checks = true               # false: answer no such questions at all

# WHAT MAY BE COMPUTED
# Models that tell this site's own effect, for example how its patients differ from others', do not run with "private".
site_effects = "private"    # or "shared": they may

# Statistical models and methods that may run here. Without these lines all that come with fahmc may; list those that
# were agreed on.
# models = ["logistic_regression"]
# samplers = ["FAHMC"]

# Python code of others that is installed on this machine and may run on the rows. Read it before you list it.
# own_models = ["module:attribute"]
# own_samplers = ["module:Class"]

# WHAT IT MAY TAKE OF THIS MACHINE
maximum_megabytes = 4096    # of memory
maximum_minutes = 60        # for a single call

# DIFFERENTIAL PRIVACY
# With these lines the site gives noisy answers alone, of which no single row can be told, and no more of them than the
# budget pays for: epsilon and delta, over all runs. Smaller numbers protect more. docs/privacy.md explains them.
# [privacy]
# epsilon = 3.0
# delta = 1e-6
"""

_MASKED = """\
# Answer only so that nobody outside sees this site's numbers, but only sums over all sites: each answer is hidden by
# random numbers that the sites agree on, and that cancel in the sum.
#   "required": refuse everything that would show an answer of this site alone
#   "allowed":  hide answers where the study does, show them to whoever runs the server where it does not
#   "off":      never hide them; whoever runs the server sees them
secure_sum = "required"
"""

_TWO = """\
# Whether answers are hidden in sums over all sites:
#   "required": refuse everything that would show an answer of this site alone
#   "allowed":  hide answers where the study does, show them to whoever runs the server where it does not
#   "off":      never hide them; whoever runs the server sees them
# In a study of fewer than three sites a sum hides little: the other site takes its own answer off and is left with
# yours. So "allowed" is proposed here, and it means that whoever runs the server may see each answer of this site. Be
# sure that you trust them, and the other site, with that.
secure_sum = "allowed"
"""


def proposed_rules(
    site: str, num_sites: int, columns: Sequence[str] | None, missing_values: Sequence[str | float] = ()
) -> str:
    """Return what a site's own file says until the site changes it."""
    enough = num_sites >= _ENOUGH_SITES
    sites = "\n# Refuse a run over fewer sites than this, this one included."
    if not enough:
        sites += f" The study has {num_sites}; with three or more it would be 3."
    return _TEXT.format(
        site=site,
        columns='"all"' if columns is None else json.dumps(list(columns)),
        missing_values=json.dumps(list(missing_values)),
        secure_sum=_MASKED if enough else _TWO,
        minimum_sites=f"{sites.lstrip()}\nminimum_sites = {min(num_sites, _ENOUGH_SITES)}",
    )
