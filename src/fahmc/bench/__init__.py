"""`fahmc bench`: how fast fahmc is next to what one would use instead, on the same work, in one interleaved run.

====================  =============================================================================================
problems, images      the rows and models
cases, workloads      what is timed against what, and the aims
ours, peers/          the contenders
oracle, agreement     whether they compute the same thing: asked before anything is timed
timing, fresh         the clock: turn by turn in this process; start and memory in processes of their own
federation, messages  rounds between processes; flare_job is the job that times them
results, chart        JSON, Markdown and a figure
suite                 all of it in order
====================  =============================================================================================
"""
