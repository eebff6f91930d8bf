"""Real federations: every client a process of its own organisation, run by NVIDIA FLARE over mutual TLS.

    kits.py        who may take part: certificates and policies, one start-up kit a participant
    policy.py      what a study's kits allow
    credentials.py a kit's certificate and key, checked before they are used
    line.py        the line from a kit to its server, tried without FLARE: why it does not hold
    port.py        the server's port: whether it is free, and who has it
    processes.py   a participant's processes: started, watched, stopped
    program.py     what such a process runs: FLARE's server or client
    reporter.py    what such a process tells of itself: connected, refused, listening
    state.py       where it tells it
    doubles.py     one process a site: copies of a kit are turned away
    logs.py        what its processes wrote, as one story
    doctor.py      what could be wrong with a participant, checked one by one
    launcher.py    how a job's workers start: as copies of a process with everything imported
    gate.py        who may say what to whom, watched at the server
    doors.py       the doors of FLARE's client that fahmc does not use, shut
    rules.py       what a site lets others compute: its own file
    proposed_rules.py  that file as a site finds it in its kit, with a comment on each rule
    server_rules.py    the server's own file
    chained_lines.py   a file of lines of which none can be changed or lost unnoticed
    ledger.py      a site's ledger: what it answered, and what is left
    counts.py      what of a site's work is counted in it, and as what
    statement.py   the ledger as a person reads it
    work.py        what a site does: describe its table, make ready, run its part of a round
    site.py        `work` as methods that the server may call
    messages.py    what analyst and server say to each other
    wire.py        what crosses between server and sites in a round
    agreement.py   how sites agree on keys that the server does not have
    masks.py       a secure sum: numbers under masks that cancel in it
    masked_replies.py  replies of a round whose sum is all that leaves the sites
    questions.py   a question about draws on its way to the sites and back
    survey.py      what the server finds out before a run
    masked_survey.py   its sums over all sites, of which no site shows its own part
    rounds.py      what the server does in a round: ask all sites, check, combine
    watch.py       who is waited for, and whether they are alive
    calls.py       how the server calls sites
    desk.py        where the analyst's commands and the server's work meet
    server.py      `rounds` as a job that serves one analyst
    job.py         the job: names of `site` and `server`, and nothing else
    connection.py  the analyst's line to the server
    owner.py       whose a job is
    lookout.py     tells the analyst who is waited for
    session.py     a job that is kept alive: waits, submits, and submits anew
    loopback.py    a whole federation on one machine
    engine.py      `Flare`: the rounds of a run, fetched from that job

Only `program`, `launcher`, `reporter`, `doubles`, `gate`, `doors`, `site`, `calls` and `server`, and functions of
`kits` and `connection`, import nvflare: fahmc works without it.
"""

from fahmc.engines.flare.engine import Flare

__all__ = ["Flare"]
