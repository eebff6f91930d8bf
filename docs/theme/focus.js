// What scrolls sideways can be reached by keyboard, once the theme has wrapped it.
document$.subscribe(() =>
  setTimeout(() =>
    document
      .querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, math[display=block]")
      .forEach((box) => box.setAttribute("tabindex", "0")),
  ),
)
