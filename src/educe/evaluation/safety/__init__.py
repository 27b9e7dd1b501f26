"""Safety: labelled real responses, detection at a fixed false-positive rate, both refusals."""
