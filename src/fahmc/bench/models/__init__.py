"""`fahmc bench models`: models on simulated rows and real tables, next to the same models written in NumPyro.

=======  =======================================================================================================
cases    rows from a known law, the model by name, and NumPyro's version of it
by_site  cases with effects of sites, on real tables
peer     the posterior that NumPyro has of all rows, by long chains of NUTS
suite    one run without settings a case, held against it
results  JSON and Markdown
=======  =======================================================================================================
"""
