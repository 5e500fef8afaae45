"""Who waits for whom, and the verdict. Pure: dataclasses in, findings out."""
