"""How a factor of a formula is read from its syntax: one of the forms of `fahmc.data.factors`, or refused.

The text was parsed as Python, and is only looked at: nothing in it is called, and no name in it is looked up.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from fahmc.data.cells import LARGEST
from fahmc.data.factors import FUNCTIONS, Centred, Factor, Levels, Numbers, Plain, Powers, Spline, Variable
from fahmc.errors import nearest

MAX_POWER = 5
"""Of a power, and of a spline's degree: more is not told from rounding."""
MAX_KNOTS = 50
LONGEST_LEVEL = 200

FORMS = (
    "x, `a name`, C(x), log(x), log1p(x), sqrt(x), I(x ** 2), poly(x, degree=2, raw=True), bs(x, df=4), center(x), "
    "scale(x), offset(x)"
)
_SPLINE, _POLY = ("x", "df", "knots", "degree", "lower_bound", "upper_bound"), ("x", "degree", "raw")


class NoSuchForm(Exception):
    """Something that is not on the list; its text says what is."""


def read_factor(name: str, node: ast.expr, columns: Mapping[str, str]) -> Factor:
    """Read a factor from its syntax; ``columns`` has the columns that names stand for which are none in Python."""
    if not isinstance(node, ast.Call):
        return Plain(name, _read_variable(node, columns))
    match called(node):
        case "C":
            return _read_levels(name, node, columns)
        case "I":
            (power,) = _arguments(node, ("v ** 2",), required=1).values()
            return _read_power(name, power, columns)
        case "poly":
            return _read_poly(name, node, columns)
        case "bs":
            return _read_spline(name, node, columns)
        case "center" | "scale" as function:
            (inner,) = _arguments(node, ("x",), required=1).values()
            return Centred(name, _read_variable(inner, columns), is_scaled=function == "scale")
    return Plain(name, _read_variable(node, columns))


def read_name(node: ast.expr, columns: Mapping[str, str]) -> str:
    """Read the name of a column."""
    if not isinstance(node, ast.Name):
        raise NoSuchForm(f"a column's name is needed, not {ast.unparse(node)}")
    return columns.get(node.id, node.id)


def called(node: ast.expr) -> str:
    """Return the name of the function that is called, of those that there are or not; "" for anything else."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _read_variable(node: ast.expr, columns: Mapping[str, str]) -> Variable:
    if isinstance(node, ast.Name):
        return Variable(read_name(node, columns))
    name = called(node)
    if isinstance(node, ast.Call) and name in FUNCTIONS:
        (inner,) = _arguments(node, ("x",), required=1).values()
        return Variable(read_name(inner, columns), name)
    known = [*FUNCTIONS, "C", "I", "poly", "bs", "center", "scale", "offset"]
    if name in known:
        raise NoSuchForm(f"{name}() may not stand there. There are {FORMS}, where x may also be log(x), but not C(...)")
    hint = nearest(name, known) if name else "."
    raise NoSuchForm(f"formulas run no code, and this is none of what they know{hint} There are {FORMS}")


def _read_levels(name: str, node: ast.Call, columns: Mapping[str, str]) -> Levels:
    given = _arguments(node, ("x", "contrasts"), required=1)
    column, contrasts = Variable(read_name(given["x"], columns)), given.get("contrasts")
    if contrasts is None:
        return Levels(name, column)
    is_known = isinstance(contrasts, ast.Call) and ast.unparse(contrasts.func) in ("Treatment", "contr.treatment")
    if not is_known or not isinstance(contrasts, ast.Call):
        raise NoSuchForm('levels are coded against one of them: C(x), or C(x, Treatment("a")) where "a" is that one')
    word = "base" if isinstance(contrasts.func, ast.Attribute) else "reference"
    (level,) = _arguments(contrasts, (word,), required=1).values()
    value = _literal(level)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_LEVEL:
        raise NoSuchForm(f'{ast.unparse(contrasts.func)}() takes a level as text: "a"')
    return Levels(name, column, value)


def _read_power(name: str, node: ast.expr, columns: Mapping[str, str]) -> Numbers:
    if not isinstance(node, ast.BinOp):
        return Plain(name, _read_variable(node, columns))
    if not isinstance(node.op, ast.Pow):
        raise NoSuchForm("I() takes a power of a column, such as I(x ** 2)")
    exponent = _whole("the power", node.right, 1, MAX_POWER)
    return Powers(name, _read_variable(node.left, columns), (exponent,), is_numbered=False)


def _read_poly(name: str, node: ast.Call, columns: Mapping[str, str]) -> Powers:
    given = _arguments(node, _POLY, required=1)
    if "raw" not in given or _literal(given["raw"]) is not True:
        raise NoSuchForm(
            "polynomials that are orthogonal over all rows would need more of the sites than their means; write "
            f"{ast.unparse(node)[:-1]}, raw=True), or a spline: bs(x, df=4)"
        )
    degree = _whole("degree", given["degree"], 1, MAX_POWER) if "degree" in given else 1
    return Powers(name, _read_variable(given["x"], columns), tuple(range(1, degree + 1)), is_numbered=True)


def _read_spline(name: str, node: ast.Call, columns: Mapping[str, str]) -> Spline:
    given = _arguments(node, _SPLINE, required=1)
    degree = _whole("degree", given["degree"], 1, MAX_POWER) if "degree" in given else 3
    if "df" in given and "knots" in given:
        raise NoSuchForm("df and knots say the same; give one of them")
    knots = None
    if "knots" in given:
        listed = given["knots"]
        if not isinstance(listed, ast.List | ast.Tuple) or len(listed.elts) > MAX_KNOTS:
            raise NoSuchForm(f"knots is a list of at most {MAX_KNOTS} numbers: knots=[2, 3.5]")
        knots = tuple(_number("a knot", knot) for knot in listed.elts)
    df = _whole("df", given["df"], degree, degree + MAX_KNOTS) if "df" in given else degree + len(knots or ())
    lower, upper = (_number(word, given[word]) if word in given else None for word in ("lower_bound", "upper_bound"))
    variable = _read_variable(given["x"], columns)
    spline = Spline(name, variable, degree, df - degree, knots, lower, upper)
    if not spline.needs_spread and (complaint := spline.knots(None).complaint()):
        raise NoSuchForm(complaint)
    return spline


def _arguments(node: ast.Call, names: Sequence[str], required: int) -> dict[str, ast.expr]:
    """Return a call's arguments by name."""
    call = ast.unparse(node.func)
    usage = f"it is written {call}({', '.join(names[:required])})"
    if any(isinstance(argument, ast.Starred) for argument in node.args) or len(node.args) > len(names):
        raise NoSuchForm(f"{call}() takes {len(names)} thing(s) at most; {usage}")
    given = dict(zip(names, node.args, strict=False))
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg not in names or keyword.arg in given:
            known = ", ".join(names[1:]) or "nothing by name"
            what = f"does not take {keyword.arg} there" if keyword.arg else "takes no ** there"
            raise NoSuchForm(f"{call}() {what}; it takes {known}")
        given[keyword.arg] = keyword.value
    if any(name not in given for name in names[:required]):
        raise NoSuchForm(usage)
    return given


def _literal(node: ast.expr) -> object:
    """Return a number, a text or True as it is written; numbers may have a sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return node.value if isinstance(node, ast.Constant) else None


def _whole(what: str, node: ast.expr, least: int, most: int) -> int:
    value = _literal(node)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise NoSuchForm(f"{what} must be a whole number from {least} to {most}, written out")
    return value


def _number(what: str, node: ast.expr) -> float:
    value = _literal(node)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise NoSuchForm(f"{what} must be a number up to {LARGEST:g} in size, written out")
    return float(value)
