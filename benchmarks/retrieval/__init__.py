"""How well searches find: sets of questions with judged answers, measures, and Kvarn's retrieval over them."""
