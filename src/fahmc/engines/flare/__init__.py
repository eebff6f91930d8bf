"""Real federations: every client a process of its own organisation, run by NVIDIA FLARE over mutual TLS.

    kits.py        who may take part: certificates and policies, one start-up kit a participant
    processes.py   a participant's processes: started, watched, stopped
    program.py     what such a process runs: FLARE's server or client
    gate.py        who may say what to whom, watched at the server
    doors.py       the doors of FLARE's client that fahmc does not use, shut
    rules.py       what a site lets others compute: its own file
    work.py        what a site does: describe its table, make ready, run its part of a round
    site.py        `work` as methods that the server may call
    messages.py    what analyst and server say to each other
    wire.py        what crosses between server and sites in a round
    survey.py      what the server finds out before a run
    rounds.py      what the server does in a round: ask all sites, check, combine
    desk.py        where the analyst's commands and the server's work meet
    server.py      `rounds` as a job that serves one analyst
    job.py         the job: names of `site` and `server`, and nothing else
    connection.py  the analyst's line to the server
    session.py     a job that is kept alive: waits, submits, and submits anew
    loopback.py    a whole federation on one machine
    engine.py      `Flare`: the rounds of a run, fetched from that job

Only `program`, `gate`, `doors`, `site` and `server`, and functions of `kits` and `connection`, import nvflare: fahmc
works without it.
"""

from fahmc.engines.flare.engine import Flare

__all__ = ["Flare"]
