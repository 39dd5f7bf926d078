"""One file per setting: what is wanted, what is found, and the things that bring the one to the other and back."""
