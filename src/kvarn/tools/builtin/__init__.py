"""Tools that come with Kvarn: a calculator and a clock."""
