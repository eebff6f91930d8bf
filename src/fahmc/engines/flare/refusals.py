"""All that a site says when it does not do what it is asked: one of these sentences.

They hold no number and nothing of the site's file. The only free place is for words that the asker has used himself, as
the name of a column that he may not have. A refusal crosses the wire as its name and those words; who reads it writes
the sentence. So nothing else can leave, whatever an error's own message says: that is for the site's log.
"""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fahmc.errors import DataError, FahmcError, FederationError, SettingsError

# More than a sentence should quote.
_MOST_WORDS, _LONGEST_WORD = 8, 200


class Refusal(enum.Enum):
    """The list: the kind of error that it is where it is read, what is said, and what stands for words that are not."""

    NOT_THE_SERVER = FederationError, "only the server may call a site."
    REQUEST = FederationError, "the request cannot be read; is this site's fahmc as new as the server's?"
    ORDER = FederationError, "the order cannot be read; is this fahmc as new as the analyst's?"
    TOO_LARGE = (
        FederationError,
        "this takes more memory than the site gives a run. Ask for less, or ask the site to raise maximum_megabytes in "
        "its own file.",
    )
    TOO_LONG = (
        FederationError,
        "this takes more time than the site gives a call. Ask for less, or ask the site to raise maximum_minutes in "
        "its own file.",
    )
    FILE = DataError, "this site's file cannot be read; its log says why."
    COLUMNS = (
        FederationError,
        "the columns {} may not be used here. Leave them out, or ask the site to add them to its own file.",
        "asked for",
    )
    FEW_ROWS = (
        FederationError,
        "this site has fewer complete rows of these columns than it takes part with (minimum_rows in its own file).",
    )
    RARE_LEVEL = (
        FederationError,
        "of {}, some value has fewer rows at this site than it tells of (minimum_rows_per_level in its own file); its "
        "log says which. The site may put rare values together in its file; or leave such columns out.",
        "the columns asked for, or of their products",
    )
    MANY_LEVELS = (
        FederationError,
        "{} has more different values at this site than it tells of (maximum_levels in its own file). The site may put "
        "values together in its file; or leave the column out.",
        "a column",
    )
    SURVEYS = (
        FederationError,
        "this site has told of as many different choices of columns as it does of one file (maximum_runs in its own "
        "file). Choose columns as before, or ask the site to raise it.",
    )
    RUNS = (
        FederationError,
        "this site has taken part in as many different runs as it does with one file (maximum_runs in its own file). "
        "Resume one of them, or ask the site to raise it.",
    )
    ROUNDS = (
        FederationError,
        "this site has computed as many rounds of this run as it does of one (maximum_rounds in its own file). Ask it "
        "to raise that, then resume.",
    )
    QUESTIONS = (
        FederationError,
        "this site has answered as many different questions about draws as it does of one file (maximum_questions in "
        "its own file).",
    )
    FEW_SITES = (
        FederationError,
        "this is asked of fewer sites than this one takes part with (minimum_sites in its own file).",
    )
    WEIGHT = (
        FederationError,
        "the average would be this site's own to a larger share than it allows (maximum_weight in its own file). Give "
        "it a smaller weight, or ask the site to raise it.",
    )
    PARAMETERS = (
        FederationError,
        "the model has more parameters than this site has rows for (rows_per_parameter in its own file). Take fewer "
        "features or another model, or ask the site to lower it.",
    )
    GAPS = (
        DataError,
        'this site lacks values in {}. Leave such columns out, or set missing = "drop" to leave such rows out; the '
        "site's log says more.",
        "columns that were asked for",
    )
    MISSING_VALUES = (
        FederationError,
        "{} may be a value here, and is not left out. Ask the site to add it to missing_values in its own file.",
        "one of the missing values asked for",
    )
    CELLS = (
        DataError,
        "the cells of {} are not all numbers that can be used, and not all text; the site's log says which. The site "
        "may correct them. What stands for a missing value is named under missing_values, a column of codes under "
        "categorical.",
        "a column",
    )
    UNFIT_CELLS = (
        DataError,
        "the cells of {} are not all what the column is named for (an exposure, and what a logarithm is taken of, is "
        "above zero, a row's weight and what a root is taken of zero or more, an event zero or one, trials a whole "
        "number); the site's log says which. The site may correct them; or "
        "name another column.",
        "a column",
    )
    TEXT_HERE = (
        DataError,
        "{} holds text here and numbers elsewhere. Leave it out, or name it under categorical if it holds codes.",
        "a column",
    )
    ENCODING = FederationError, "this site cannot have agreed to write {} like that.", "its columns"
    NOT_ARRAYS = (
        DataError,
        "no outcome is named, and this site's file is not an .npz file, whose arrays can go as they are. Name the "
        "outcome.",
    )
    ARRAYS = DataError, "this site's arrays cannot go as they are; its log says why."
    NO_ROWS = FederationError, "this site was not asked for its rows before the run."
    MODEL = FederationError, "the model {} may not run here. Ask the site to add it to models in its own file.", "named"
    OWN_MODEL = (
        FederationError,
        "the model {} is not ready-made and not listed here. To allow it, the site installs its module and adds it to "
        "own_models in its own file.",
        "named",
    )
    SITE_EFFECTS = (
        FederationError,
        "the model tells the effect of each site, and this one keeps its own (site_effects in its own file). Take "
        'site_effects = "private intercept", which gives all else the same posterior, or ask the site to share.',
    )
    SAMPLER = (
        FederationError,
        "the sampler {} may not run here. Ask the site to add it to samplers in its own file.",
        "named",
    )
    OWN_SAMPLER = (
        FederationError,
        "{} is not part of fahmc and not listed here. To allow it, the site installs its module and adds it to "
        "own_samplers in its own file.",
        "what the sampler names",
    )
    NO_BUDGET = (
        FederationError,
        "this site has no budget for private answers. Ask it to set one in its own file, a table [privacy] with "
        "epsilon and delta; or run without [privacy].",
    )
    NOT_PRIVATE = (
        FederationError,
        "this site gives differentially private answers alone (privacy in its own file), and this run asks for others. "
        "Use fahmc.private_laplace, or a table [privacy] in the study.",
    )
    SHARED_NOISE = (
        FederationError,
        "this site adds all the noise that its own answers need (shared_noise in its own file, and a secure sum). Use "
        'noise = "own".',
    )
    BUDGET = (
        FederationError,
        "this would spend more privacy than the site's budget has left (epsilon and delta under privacy in its own "
        "file). Ask for less, resume a run that was begun, or ask the site to raise it.",
    )
    PUBLIC_BOUNDS = (
        FederationError,
        "this site tells no statistics of its columns (privacy in its own file). Name public bounds and levels of all "
        "features.",
    )
    CHECKS = FederationError, "questions about draws are not answered here (checks in the site's own file)."
    OWN_CHECK = (
        FederationError,
        "{} is not part of fahmc and not listed here. To allow it, the site installs its module and adds it to "
        "own_checks in its own file.",
        "what the question names",
    )
    KIT = FederationError, "this site's kit cannot be read, so it cannot say who it is; its log says more."
    ROSTER = (
        FederationError,
        "those who are to take part are not the sites that its kit names: {} differ. All sites need kits that were "
        "made together, and all of them take part in every run.",
        "some",
    )
    FOREIGN_CERTIFICATE = (
        FederationError,
        "the certificate that was shown for {} is not of this study's authority. Find out who put it there before you "
        "go on; sites need kits that were made together.",
        "a site",
    )
    OTHER_CERTIFICATE = (
        FederationError,
        "the certificate that was shown for {} is somebody else's, or does not hold now. Find out who put it there "
        "before you go on.",
        "a site",
    )
    SWAPPED_KEY = (
        FederationError,
        "the key that was shown for {} is not the one that this site signed. Whoever put it there could have read what "
        "the secure sum hides: find out before you go on.",
        "a site",
    )
    TWO_SITES = (
        FederationError,
        "this site requires the secure sum (secure_sum in its own file), which hides nothing among fewer than three "
        "sites: each would know the other's part.",
    )
    SUM_REFUSED = (
        FederationError,
        "this site requires the secure sum, and {} will not take part in one (secure_sum in their own files).",
        "others",
    )
    NOT_AGREED = FederationError, "the sites were not asked to agree on a secure sum before the run."
    NOT_SUMMABLE = (
        FederationError,
        "the sampler has each site tell numbers of its own, which no secure sum can hide, and a site requires one "
        "(secure_sum in its own file). Take a sampler whose replies are averaged or summed.",
    )
    WEIGHTS = FederationError, "the weights of the sites are not shares that add up to one."
    CHANGED_ROWS = (
        FederationError,
        "this run was begun with other rows, or with rows written otherwise, in the same job. End the job, then begin "
        "again.",
    )
    UNFIT_DRAWS = DataError, "the question does not fit the model or this site's rows; its log says why."
    OTHER_ROWS = DataError, "the models were not fitted to the same rows here, so they cannot be compared."
    SETTINGS = SettingsError, "the model or the sampler cannot be made here; the site's log says why."
    FIT = DataError, "its rows do not fit the model or the sampler; its log says why."
    NOT_READY = FederationError, "this site was not told to make ready for this run."
    BROADCAST = FederationError, "what the server sent is not what the order says."
    LEDGER = (
        FederationError,
        "this site's ledger, in which it writes what it answers, cannot be read or written; its log says why.",
    )
    FAULT = FederationError, "this failed; the site's log says more."

    def sentence(self, words: tuple[str, ...] = ()) -> str:
        """Return what is said, about these words of the asker's."""
        _, text, *instead = self.value
        return text.format(", ".join(map(repr, words)) or "".join(instead))


class Refused(FahmcError):
    """What a site will not do; its cause is for the site's log."""

    def __init__(self, refusal: Refusal, *words: str):
        super().__init__(refusal.sentence(words))
        self.refusal, self.words = refusal, words


@contextlib.contextmanager
def refusing(refusals: Refusal | Mapping[type[Exception], Refusal]) -> Iterator[None]:
    """Have every error of fahmc's in the block leave as a refusal: of one kind, or by the error's class."""
    by_class = {FahmcError: refusals} if isinstance(refusals, Refusal) else refusals
    try:
        yield
    except Refused:
        raise
    except tuple(by_class) as error:
        refusal = next(refusal for kind, refusal in by_class.items() if isinstance(error, kind))
        raise Refused(refusal, *getattr(error, "columns", ())) from error


def write_refusal(error: BaseException, asked: Iterable[Any]) -> dict[str, Any]:
    """Return what leaves a site instead of an error; ``asked`` holds what it was called with."""
    refused = error if isinstance(error, Refused) else Refused(Refusal.FAULT)
    return {"refused": refused.refusal.name, "words": list(_own_words(refused.words, asked))}


def raise_refusal(site: str, during: str, answer: Mapping[str, Any], asked: Iterable[Any]) -> None:
    """Raise what a site refused, if it did, in the words of this list alone."""
    if "refused" not in answer:
        return
    name = answer["refused"]
    if not isinstance(name, str) or name not in Refusal.__members__:
        raise FederationError(
            f"Site {site!r} refuses {during}, in a way that is not known here; is its fahmc as new as the server's?"
        )
    refusal, words = Refusal[name], answer.get("words")
    words = _own_words(words if isinstance(words, list) else (), asked)
    raise refusal.value[0](f"Site {site!r} refuses {during}: {refusal.sentence(words)}")


def _own_words(words: Iterable[Any], asked: Iterable[Any]) -> tuple[str, ...]:
    """Return the words that are whole strings of the JSON that was sent; others could tell something."""
    text = "".join(value for value in asked if isinstance(value, str))

    def is_known(word: Any) -> bool:
        if not isinstance(word, str) or len(word) > _LONGEST_WORD:
            return False
        return any(json.dumps(word, ensure_ascii=escapes) in text for escapes in (True, False))

    return tuple(word for word in words if is_known(word))[:_MOST_WORDS]
