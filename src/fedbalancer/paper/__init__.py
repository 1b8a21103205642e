"""The paper's tables and figures, made anew: what each needs of runs, what it shows, and the paper's own numbers."""
