#!/bin/bash
# rebase this worktree's commits on main and fast-forward main to them
cd /tmp/wt_roof && git rebase main && cd /work/main && git merge --ff-only roof
