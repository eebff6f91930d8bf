"""The paper's figures, each from one command: data, reference, tuning, runs, picture and verdict.

A figure is a file that says what is run and what the paper claims of it (`figure_1_step_size`, `figure_1_local_steps`,
`figure_2`, `figures_3_to_7`); the others are what figures share. `catalogue.FIGURES` lists them.

Reference: Liang, Zhang, Deng, Song and Lin (2024), arXiv:2407.06935, section 5 and supplement L.
"""
