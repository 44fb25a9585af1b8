"""The tables, by aggregate."""

from __future__ import annotations

from kvarn.store.models.base import Base
from kvarn.store.models.changes import Change, Lease
from kvarn.store.models.chunks import ChunkFile, ChunkStore, ChunkVector, StoredChunk
from kvarn.store.models.containers import Container
from kvarn.store.models.conversations import Conversation, ConversationItem, StoredCompletion, StoredResponse
from kvarn.store.models.deployments import Deployment, DeploymentVersion, RolloutSamples, StoredRollout, VersionNumber
from kvarn.store.models.files import Batch, BatchLine, File, FileChunk, Upload
from kvarn.store.models.kept_requests import KeptDetail, KeptRequest
from kvarn.store.models.quality import (
    EvaluationResult,
    EvaluationRun,
    EvaluationSet,
    EvaluationSetVersion,
    Feedback,
)
from kvarn.store.models.retrieval import VectorStore, VectorStoreFile, VectorStoreFileBatch
from kvarn.store.models.sessions import ConsoleSession
from kvarn.store.models.tenants import (
    ApiKey,
    AuditEntry,
    Organization,
    Project,
    ProjectMember,
    PromptSample,
    RateLimit,
    User,
)
from kvarn.store.models.tool_calls import StoredToolCall
from kvarn.store.models.tool_servers import StoredToolServer
from kvarn.store.models.usage import (
    BilledEvent,
    BilledHour,
    Budget,
    ErasedOrganization,
    OutboxEntry,
    UsageEvent,
    UsageHour,
    UsagePeriod,
)
