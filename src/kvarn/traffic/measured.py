"""Lengths, turns and pauses as others have measured and published them.

Azure: public traces of 2023 (github.com/Azure/AzurePublicDataset, CC BY 4.0; Patel et al., Splitwise, ISCA 2024).
Mooncake: the conversation trace of Qin et al., Mooncake, FAST 2025 (github.com/kvcache-ai/Mooncake, Apache 2.0).
Quantiles are counted from the files; where only a median and a mean are published, a log-normal distribution has both.
"""

from __future__ import annotations

from kvarn.traffic.distributions import LogNormal, Quantiles

AZURE_CONV_PROMPTS = Quantiles(
    (
        *((0, 2), (0.01, 29), (0.02, 91), (0.05, 181), (0.1, 207), (0.15, 372), (0.2, 387), (0.25, 396), (0.3, 403)),
        *((0.35, 414), (0.4, 703), (0.45, 984), (0.5, 1020), (0.55, 1045), (0.6, 1071), (0.65, 1097), (0.7, 1130)),
        *((0.75, 1189), (0.8, 1315), (0.85, 1876), (0.9, 2734), (0.95, 4083), (0.98, 4098), (0.99, 4142)),
        *((0.995, 4831), (1, 14050)),
    )
)
AZURE_CONV_OUTPUTS = Quantiles(
    (
        *((0, 7), (0.01, 16), (0.02, 24), (0.05, 41), (0.1, 54), (0.15, 67), (0.2, 77), (0.25, 85), (0.3, 91)),
        *((0.35, 96), (0.4, 103), (0.45, 113), (0.5, 129), (0.55, 151), (0.6, 177), (0.65, 217), (0.7, 384)),
        *((0.75, 395), (0.8, 400), (0.85, 411), (0.9, 424), (0.95, 451), (0.98, 540), (0.99, 601), (0.995, 643)),
        (1, 1000),
    )
)
AZURE_CODE_PROMPTS = LogNormal.of_mean(1500, 2048, low=3, high=7437)
AZURE_CODE_OUTPUTS = LogNormal.of_mean(13, 28, low=1, high=1899)
MOONCAKE_OUTPUTS = Quantiles(
    (
        *((0, 1), (0.01, 3), (0.05, 10), (0.1, 24), (0.2, 100), (0.25, 157), (0.3, 213), (0.4, 291), (0.5, 350)),
        *((0.6, 399), (0.7, 447), (0.75, 472), (0.8, 504), (0.85, 543), (0.9, 597), (0.95, 698), (0.98, 891)),
        *((0.99, 1120), (0.995, 1570), (1, 2000)),
    )
)
MOONCAKE_FIRST = Quantiles(
    (
        *((0, 379), (0.05, 385), (0.1, 393), (0.2, 580), (0.25, 824), (0.3, 1245), (0.4, 3402), (0.5, 4752)),
        *((0.6, 6905), (0.7, 10256), (0.75, 12544), (0.8, 15359), (0.85, 18921), (0.9, 25049), (0.95, 37952)),
        *((0.98, 66700), (0.99, 89355), (0.995, 111093), (1, 125683)),
    )
)
MOONCAKE_NEW = Quantiles(
    (
        *((0, 1), (0.1, 1), (0.2, 4), (0.25, 7), (0.3, 9), (0.4, 14), (0.5, 23), (0.6, 49), (0.7, 207), (0.75, 425)),
        *((0.8, 986), (0.85, 2724), (0.9, 4251), (0.95, 7040), (0.98, 11875), (0.99, 16705), (0.995, 22478)),
        (1, 91467),
    )
)

"""Tokens of a later turn besides what went before and its answer."""
MOONCAKE_TURNS = Quantiles(
    (
        *((0, 0.5), (0.6928, 1.5), (0.8713, 2.5), (0.9344, 3.5), (0.9615, 4.5), (0.9773, 5.5), (0.9845, 6.5)),
        *((0.9881, 7.5), (0.9915, 8.5), (0.9934, 9.5), (0.9955, 10.5), (0.9967, 12.5), (0.9981, 15.5)),
        *((0.9992, 17.5), (1, 20.5)),
    )
)
"""Turns whose prompt continues one that came before; points lie between whole numbers."""
