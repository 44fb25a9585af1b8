#!/bin/bash
cd /tmp/wt_roof
cmake -S . -B build/dev -G Ninja -DCMAKE_MAKE_PROGRAM=/tmp/ninja -Dnanobind_DIR=$(/work/main/.venv/bin/python -m nanobind --cmake_dir) -DPython_EXECUTABLE=/work/main/.venv/bin/python >/dev/null && nice cmake --build build/dev -j2
