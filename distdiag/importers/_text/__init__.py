"""Lines of training output: how they are cleaned, understood, given to ranks and made records."""
