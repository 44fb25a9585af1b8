"""How layers mix tokens: kinds of attention, with their weights and what a step needs of them."""
