"""`fahmc bench rounds`: how many communication rounds a posterior costs, and how far off it is.

=====================  ============================================================================================
hospitals, tables      rows of real patients and of public tables
simulated              rows drawn from a known law
families               the models that are not ready-made
problems               all of them by name, with the rounds that are allowed
references             the posterior given all rows, by long chains of NUTS
measure                one run, held against its reference
rivals                 what else one would do, by the same yardstick
kept, results, suite   finished runs on disk; JSON and Markdown; all of it in order
=====================  ============================================================================================
"""
