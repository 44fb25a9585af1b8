-- A database made by Kvarn with the schema 0011 (November 2026): sqlite3 .dump. Key: kv-ak7cXOA2tA6LlqkA71jEsLkWprqCKbBFL3AuQ3wsKoz5JgmUWFbyCjV
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0011');
CREATE TABLE api_keys (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64), 
	name VARCHAR(256) NOT NULL, 
	lookup VARCHAR(32) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	redacted VARCHAR(32) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	scopes JSON NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	revoked_at BIGINT, 
	last_used_at BIGINT, 
	CONSTRAINT pk_api_keys PRIMARY KEY (id), 
	CONSTRAINT fk_api_keys_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE, 
	CONSTRAINT fk_api_keys_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE, 
	CONSTRAINT fk_api_keys_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_api_keys_lookup UNIQUE (lookup)
);
INSERT INTO "api_keys" VALUES('key_01a20595ac9ed501619f8efd560501bf','org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc','user-01a20595ac8e8b1dd24da270b25f26f7','first','ak7cXOA2tA6L','071c5bf12f6fae4657f14f0eb281a1cdf0d846b6e90360f3fb1f70045c4b9cb4','kv-ak7cXO...yCjV','service','{}',1790000000,NULL,NULL,NULL);
CREATE TABLE audit_log (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	effective_at BIGINT NOT NULL, 
	type VARCHAR(64) NOT NULL, 
	actor_key_id VARCHAR(64), 
	actor VARCHAR(256) NOT NULL, 
	actor_organization_id VARCHAR(64), 
	actor_user_id VARCHAR(64), 
	actor_email VARCHAR(320), 
	object_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64), 
	detail JSON NOT NULL, 
	CONSTRAINT pk_audit_log PRIMARY KEY (id)
);
INSERT INTO "audit_log" VALUES('audit_log-01a20595ac7e8a983e2e7afb96b86340','org-default',1790000000,'organization.created',NULL,'server',NULL,NULL,NULL,'org-default',NULL,'{"data":{"name":"Default","weight":1.0,"priority":0,"retention_days":null}}');
INSERT INTO "audit_log" VALUES('audit_log-01a20595ac894ab99e7df0e3929710fb','org-01a20595ac87fcb593b65107b46d2972',1790000000,'organization.created',NULL,'test',NULL,NULL,NULL,'org-01a20595ac87fcb593b65107b46d2972',NULL,'{"data":{"name":"Acme","weight":2.0,"priority":0,"retention_days":9}}');
INSERT INTO "audit_log" VALUES('audit_log-01a20595ac8eb1d5c6a3278a14cfebd4','org-01a20595ac87fcb593b65107b46d2972',1790000000,'user.added',NULL,'test',NULL,NULL,NULL,'user-01a20595ac8e8b1dd24da270b25f26f7',NULL,'{"data":{"role":"admin","email":"ann@example.org"}}');
INSERT INTO "audit_log" VALUES('audit_log-01a20595ac96b7c99f0ac43e80282a3a','org-01a20595ac87fcb593b65107b46d2972',1790000000,'user.added',NULL,'test',NULL,NULL,NULL,'user-01a20595ac8e8b1dd24da270b25f26f7','proj_01a20595ac872bea2e5b1427080be0fc','{"data":{"role":"owner"}}');
INSERT INTO "audit_log" VALUES('audit_log-01a20595ac9ee8109b1d743a3bedb5f0','org-01a20595ac87fcb593b65107b46d2972',1790000000,'api_key.created',NULL,'test',NULL,NULL,NULL,'key_01a20595ac9ed501619f8efd560501bf','proj_01a20595ac872bea2e5b1427080be0fc','{"data":{"name":"first","role":"service","expires_at":null,"scopes":[]}}');
INSERT INTO "audit_log" VALUES('audit_log-01a20595aca199e7574d6ef8f5cd6106','org-01a20595ac87fcb593b65107b46d2972',1790000000,'rate_limit.updated',NULL,'test',NULL,NULL,NULL,'rl_01a20595aca18162aee6408e30144fea',NULL,'{"changes_requested":{"holder":"org-01a20595ac87fcb593b65107b46d2972","model":"*","requests_per_minute":7}}');
INSERT INTO "audit_log" VALUES('audit_log-01a20595aca132abba50617ce39cdf70','org-01a20595ac87fcb593b65107b46d2972',1790000000,'budget.created',NULL,'test',NULL,NULL,NULL,'budget-01a20595aca14557919960549793ae03',NULL,'{"unit":"tokens","period":"total","hard_limit":1000,"soft_limit":null}');
CREATE TABLE batch_lines (
	batch_id VARCHAR(64) NOT NULL, 
	line BIGINT NOT NULL, 
	custom_id VARCHAR(512) NOT NULL, 
	failed BOOLEAN, 
	model VARCHAR(256) NOT NULL, 
	body BLOB NOT NULL, 
	answer BLOB, 
	CONSTRAINT pk_batch_lines PRIMARY KEY (batch_id, line), 
	CONSTRAINT fk_batch_lines_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id) ON DELETE CASCADE
);
INSERT INTO "batch_lines" VALUES('batch_01a20595acf76fcf68b30853cb463668',1,'c1',NULL,'m',X'7B7D',NULL);
CREATE TABLE batches (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	key_id VARCHAR(64), 
	endpoint VARCHAR(64) NOT NULL, 
	input_file_id VARCHAR(64) NOT NULL, 
	output_file_id VARCHAR(64), 
	error_file_id VARCHAR(64), 
	status VARCHAR(16) NOT NULL, 
	window_s BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	times JSON NOT NULL, 
	errors JSON NOT NULL, 
	extra JSON NOT NULL, 
	output_expires_after_s BIGINT, 
	model VARCHAR(256), 
	total BIGINT NOT NULL, 
	completed BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	leased_by VARCHAR(64), 
	leased_until BIGINT, 
	counted_bytes BIGINT NOT NULL, 
	reserved_bytes BIGINT NOT NULL, 
	CONSTRAINT pk_batches PRIMARY KEY (id), 
	CONSTRAINT fk_batches_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE, 
	CONSTRAINT fk_batches_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
INSERT INTO "batches" VALUES('batch_01a20595acf76fcf68b30853cb463668','org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc','key_01a20595ac9ed501619f8efd560501bf','/v1/chat/completions','file-01a20595acf0909c4a35b450de00d0e5',NULL,NULL,'validating',86400,1790000000,1790086400,'{}','[]','{}',NULL,NULL,0,0,0,0,0,0,NULL,NULL,1026,0);
CREATE TABLE billed_events (
	event_id VARCHAR(64) NOT NULL, 
	billed_at BIGINT NOT NULL, 
	CONSTRAINT pk_billed_events PRIMARY KEY (event_id)
);
INSERT INTO "billed_events" VALUES('use_0',1790000000);
INSERT INTO "billed_events" VALUES('use_1',1790000000);
CREATE TABLE billed_hours (
	hour_at BIGINT NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	key_id VARCHAR(64) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	requests BIGINT NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	cost BIGINT NOT NULL, 
	CONSTRAINT pk_billed_hours PRIMARY KEY (hour_at, organization_id, project_id, key_id, model, currency)
);
INSERT INTO "billed_hours" VALUES(1789999200,'org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc','key_01a20595ac9ed501619f8efd560501bf','tiny','usd',2,20,8,10,2000);
CREATE TABLE budgets (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	holder_id VARCHAR(64) NOT NULL, 
	created_at BIGINT NOT NULL, 
	unit VARCHAR(16) NOT NULL, 
	currency VARCHAR(3), 
	period VARCHAR(16) NOT NULL, 
	hard_limit BIGINT, 
	soft_limit BIGINT, 
	alerted_period VARCHAR(16), 
	CONSTRAINT pk_budgets PRIMARY KEY (id), 
	CONSTRAINT fk_budgets_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE
);
INSERT INTO "budgets" VALUES('budget-01a20595aca14557919960549793ae03','org-01a20595ac87fcb593b65107b46d2972','org-01a20595ac87fcb593b65107b46d2972',1790000000,'tokens',NULL,'total',1000,NULL,NULL);
CREATE TABLE conversation_items (
	id VARCHAR(64) NOT NULL, 
	conversation_id VARCHAR(64) NOT NULL, 
	position BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	item JSON NOT NULL, 
	counted_bytes BIGINT NOT NULL, 
	CONSTRAINT pk_conversation_items PRIMARY KEY (id, conversation_id), 
	CONSTRAINT fk_conversation_items_conversation_id FOREIGN KEY(conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
);
INSERT INTO "conversation_items" VALUES('msg_1','conv_01a20595ace43f6c6c47c9a952eb2f01',0,1790000000,'{"id":"msg_1","type":"message","role":"user","content":[{"type":"input_text","text":"hello"}]}',350);
CREATE TABLE conversations (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	created_at BIGINT NOT NULL, 
	changed_at BIGINT NOT NULL, 
	extra JSON NOT NULL, 
	num_items BIGINT NOT NULL, 
	counted_bytes BIGINT NOT NULL, 
	locked_by VARCHAR(64), 
	locked_until BIGINT, 
	CONSTRAINT pk_conversations PRIMARY KEY (id), 
	CONSTRAINT fk_conversations_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE, 
	CONSTRAINT fk_conversations_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
INSERT INTO "conversations" VALUES('conv_01a20595ace43f6c6c47c9a952eb2f01','org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc',1790000000,1790000000,'{"topic":"x"}',1,1387,NULL,NULL);
CREATE TABLE deployment_versions (
	model VARCHAR(256) NOT NULL, 
	version INTEGER NOT NULL, 
	spec JSON NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by VARCHAR(256) NOT NULL, fingerprints JSON, 
	CONSTRAINT pk_deployment_versions PRIMARY KEY (model, version), 
	CONSTRAINT fk_deployment_versions_model FOREIGN KEY(model) REFERENCES deployments (model) ON DELETE CASCADE
);
CREATE TABLE deployments (
	model VARCHAR(256) NOT NULL, 
	version INTEGER NOT NULL, 
	previous_version INTEGER, 
	replicas INTEGER, 
	changed_at BIGINT NOT NULL, 
	changed_by VARCHAR(256) NOT NULL, adapters JSON, 
	CONSTRAINT pk_deployments PRIMARY KEY (model)
);
CREATE TABLE erased_organizations (
	id VARCHAR(64) NOT NULL, 
	erased_at BIGINT NOT NULL, 
	CONSTRAINT pk_erased_organizations PRIMARY KEY (id)
);
INSERT INTO "erased_organizations" VALUES('org-gone',1790000000);
CREATE TABLE file_chunks (
	file_id VARCHAR(64) NOT NULL, 
	position BIGINT NOT NULL, 
	content BLOB NOT NULL, 
	CONSTRAINT pk_file_chunks PRIMARY KEY (file_id, position), 
	CONSTRAINT fk_file_chunks_file_id FOREIGN KEY(file_id) REFERENCES files (id) ON DELETE CASCADE
);
INSERT INTO "file_chunks" VALUES('file-01a20595acf0909c4a35b450de00d0e5',0,X'6C696E650A6C696E650A6C696E650A');
CREATE TABLE files (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	filename VARCHAR(512) NOT NULL, 
	purpose VARCHAR(32) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	size BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	counted BOOLEAN NOT NULL, 
	CONSTRAINT pk_files PRIMARY KEY (id), 
	CONSTRAINT fk_files_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE, 
	CONSTRAINT fk_files_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
INSERT INTO "files" VALUES('file-01a20595acf0909c4a35b450de00d0e5','org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc','in.jsonl','batch','processed',15,1790000000,NULL,1);
CREATE TABLE leases (
	name VARCHAR(64) NOT NULL, 
	holder VARCHAR(64) NOT NULL, 
	until_ms BIGINT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (name)
);
INSERT INTO "leases" VALUES('usage-outbox','gw',1790000006000);
CREATE TABLE organizations (
	id VARCHAR(64) NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	created_at BIGINT NOT NULL, 
	archived_at BIGINT, 
	weight DOUBLE NOT NULL, 
	priority INTEGER NOT NULL, 
	cache_salt VARCHAR(64) NOT NULL, 
	retention_days INTEGER, stored_bytes BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_organizations PRIMARY KEY (id)
);
INSERT INTO "organizations" VALUES('org-default','Default',1790000000,NULL,1.0,0,'b42fde3daf2b7cdae5f2bd5c43c58f2a',NULL,0);
INSERT INTO "organizations" VALUES('org-01a20595ac87fcb593b65107b46d2972','Acme',1790000000,NULL,2.0,0,'b601503340d278caf5b3ad7de585a967',9,8167);
CREATE TABLE project_members (
	project_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_project_members PRIMARY KEY (project_id, user_id), 
	CONSTRAINT fk_project_members_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE, 
	CONSTRAINT fk_project_members_user_id FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
);
INSERT INTO "project_members" VALUES('proj_01a20595ac872bea2e5b1427080be0fc','user-01a20595ac8e8b1dd24da270b25f26f7','owner',1790000000);
CREATE TABLE projects (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	created_at BIGINT NOT NULL, 
	archived_at BIGINT, 
	is_default BOOLEAN NOT NULL, 
	log_prompts BOOLEAN NOT NULL, 
	CONSTRAINT pk_projects PRIMARY KEY (id), 
	CONSTRAINT fk_projects_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE
);
INSERT INTO "projects" VALUES('proj_default','org-default','Default project',1790000000,NULL,1,0);
INSERT INTO "projects" VALUES('proj_01a20595ac872bea2e5b1427080be0fc','org-01a20595ac87fcb593b65107b46d2972','Default project',1790000000,NULL,1,0);
CREATE TABLE prompt_samples (
	id INTEGER NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	request_id VARCHAR(128) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	created_at BIGINT NOT NULL, 
	sealed BLOB NOT NULL, 
	counted_bytes BIGINT NOT NULL, 
	CONSTRAINT pk_prompt_samples PRIMARY KEY (id), 
	CONSTRAINT fk_prompt_samples_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE, 
	CONSTRAINT fk_prompt_samples_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
INSERT INTO "prompt_samples" VALUES(1,'org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc','req','m',1790000000,X'7365616C6564',1030);
CREATE TABLE rate_limits (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	holder_id VARCHAR(64) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	requests_per_minute BIGINT, 
	tokens_per_minute BIGINT, 
	concurrency BIGINT, 
	CONSTRAINT pk_rate_limits PRIMARY KEY (id), 
	CONSTRAINT fk_rate_limits_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE, 
	CONSTRAINT uq_rate_limits_holder_id_model UNIQUE (holder_id, model)
);
INSERT INTO "rate_limits" VALUES('rl_01a20595aca18162aee6408e30144fea','org-01a20595ac87fcb593b65107b46d2972','org-01a20595ac87fcb593b65107b46d2972','*',7,NULL,NULL);
CREATE TABLE responses (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	created_at BIGINT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	background BOOLEAN NOT NULL, 
	previous_response_id VARCHAR(64), 
	conversation_id VARCHAR(64), 
	input_items JSON NOT NULL, 
	body JSON NOT NULL, 
	request JSON NOT NULL, 
	cuts JSON NOT NULL, 
	attempts INTEGER NOT NULL, 
	leased_by VARCHAR(64), 
	leased_until BIGINT, 
	counted_bytes BIGINT NOT NULL, 
	CONSTRAINT pk_responses PRIMARY KEY (id), 
	CONSTRAINT fk_responses_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE, 
	CONSTRAINT fk_responses_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
INSERT INTO "responses" VALUES('resp_1','org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc',1790000000,'completed',0,NULL,NULL,'[{"id":"msg_0","type":"message"}]','{"id":"resp_1","created_at":1790000000,"status":"completed","previous_response_id":null,"output":[{"id":"msg_2","type":"message"}]}','{}','[[1,2]]',1,NULL,NULL,1195);
INSERT INTO "responses" VALUES('resp_2','org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc',1790000000,'queued',1,'resp_1',NULL,'[]','{"id":"resp_2","created_at":1790000000,"status":"queued","previous_response_id":"resp_1","output":[]}','{"model":"m"}','[]',1,'gw',1790000060,1142);
CREATE TABLE revisions (
	name VARCHAR(64) NOT NULL, 
	number BIGINT NOT NULL, 
	CONSTRAINT pk_revisions PRIMARY KEY (name)
);
INSERT INTO "revisions" VALUES('newest',1807165871);
CREATE TABLE rollout_samples (
	id INTEGER NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	began DOUBLE NOT NULL, 
	samples JSON NOT NULL, 
	CONSTRAINT pk_rollout_samples PRIMARY KEY (id)
);
CREATE TABLE rollouts (
	model VARCHAR(256) NOT NULL, 
	state JSON NOT NULL, 
	command VARCHAR, 
	commanded_by VARCHAR(256), 
	changed_at BIGINT NOT NULL, candidate_version INTEGER, candidate_share DOUBLE, 
	CONSTRAINT pk_rollouts PRIMARY KEY (model)
);
CREATE TABLE stored_completions (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	created_at BIGINT NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	extra JSON NOT NULL, 
	messages JSON NOT NULL, 
	body JSON NOT NULL, 
	counted_bytes BIGINT NOT NULL, 
	CONSTRAINT pk_stored_completions PRIMARY KEY (id), 
	CONSTRAINT fk_stored_completions_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE, 
	CONSTRAINT fk_stored_completions_project_id FOREIGN KEY(project_id) REFERENCES projects (id) ON DELETE CASCADE
);
INSERT INTO "stored_completions" VALUES('chatcmpl-1','org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc',1790000000,'m','{"a":"b"}','[]','{"id":"chatcmpl-1","created":1790000000,"model":"m"}',1087);
CREATE TABLE usage_events (
	id VARCHAR(64) NOT NULL, 
	request_id VARCHAR(128) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64), 
	key_id VARCHAR(64), 
	endpoint VARCHAR(256) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	model_version VARCHAR(256) NOT NULL, 
	adapter VARCHAR(256) NOT NULL, 
	replica VARCHAR(256) NOT NULL, 
	service_tier VARCHAR(16) NOT NULL, 
	batch_id VARCHAR(64), 
	outcome VARCHAR(16) NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	started_at BIGINT NOT NULL, 
	finished_at BIGINT NOT NULL, 
	duration_ms BIGINT NOT NULL, 
	ttft_ms BIGINT, 
	cost BIGINT NOT NULL, 
	currency VARCHAR(3) NOT NULL, route VARCHAR(256) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_usage_events PRIMARY KEY (id)
);
INSERT INTO "usage_events" VALUES('use_0','req-0','org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc',NULL,'key_01a20595ac9ed501619f8efd560501bf','/v1/chat/completions','tiny','','','','default',NULL,'finished',10,4,5,1790000000,1790000001,900,100,1000,'usd','');
INSERT INTO "usage_events" VALUES('use_1','req-1','org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc',NULL,'key_01a20595ac9ed501619f8efd560501bf','/v1/chat/completions','tiny','','','','default',NULL,'finished',10,4,5,1790000000,1790000001,900,100,1000,'usd','');
INSERT INTO "usage_events" VALUES('use_2','req-2','org-01a20595ac87fcb593b65107b46d2972','proj_01a20595ac872bea2e5b1427080be0fc',NULL,'key_01a20595ac9ed501619f8efd560501bf','/v1/chat/completions','tiny','','','','default',NULL,'finished',10,4,5,1790000000,1790000001,900,100,1000,'usd','');
CREATE TABLE usage_hours (
	organization_id VARCHAR(64) NOT NULL, 
	hour_at BIGINT NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	user_id VARCHAR(64) NOT NULL, 
	key_id VARCHAR(64) NOT NULL, 
	endpoint VARCHAR(256) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	service_tier VARCHAR(16) NOT NULL, 
	outcome VARCHAR(16) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	requests BIGINT NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	cost BIGINT NOT NULL, 
	CONSTRAINT pk_usage_hours PRIMARY KEY (organization_id, hour_at, project_id, user_id, key_id, endpoint, model, service_tier, outcome, currency)
);
INSERT INTO "usage_hours" VALUES('org-01a20595ac87fcb593b65107b46d2972',1789999200,'proj_01a20595ac872bea2e5b1427080be0fc','','key_01a20595ac9ed501619f8efd560501bf','/v1/chat/completions','tiny','default','finished','usd',3,30,12,15,3000);
CREATE TABLE usage_outbox (
	id INTEGER NOT NULL, 
	event_id VARCHAR(64) NOT NULL, 
	created_at BIGINT NOT NULL, 
	payload BLOB NOT NULL, 
	CONSTRAINT pk_usage_outbox PRIMARY KEY (id), 
	CONSTRAINT fk_usage_outbox_event_id FOREIGN KEY(event_id) REFERENCES usage_events (id) ON DELETE CASCADE, 
	CONSTRAINT uq_usage_outbox_event_id UNIQUE (event_id)
);
INSERT INTO "usage_outbox" VALUES(1,'use_2',1790000000,X'7B7D');
INSERT INTO "usage_outbox" VALUES(2,'use_1',1790000000,X'7B7D');
INSERT INTO "usage_outbox" VALUES(3,'use_0',1790000000,X'7B7D');
CREATE TABLE usage_periods (
	organization_id VARCHAR(64) NOT NULL, 
	period VARCHAR(16) NOT NULL, 
	project_id VARCHAR(64) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	tokens BIGINT NOT NULL, 
	cost BIGINT NOT NULL, 
	CONSTRAINT pk_usage_periods PRIMARY KEY (organization_id, period, project_id, currency)
);
INSERT INTO "usage_periods" VALUES('org-01a20595ac87fcb593b65107b46d2972','2026-09','proj_01a20595ac872bea2e5b1427080be0fc','usd',45,3000);
INSERT INTO "usage_periods" VALUES('org-01a20595ac87fcb593b65107b46d2972','2026-09-21','proj_01a20595ac872bea2e5b1427080be0fc','usd',45,3000);
INSERT INTO "usage_periods" VALUES('org-01a20595ac87fcb593b65107b46d2972','total','proj_01a20595ac872bea2e5b1427080be0fc','usd',45,3000);
CREATE TABLE users (
	id VARCHAR(64) NOT NULL, 
	organization_id VARCHAR(64) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	email VARCHAR(320), 
	role VARCHAR(16) NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_users PRIMARY KEY (id), 
	CONSTRAINT fk_users_organization_id FOREIGN KEY(organization_id) REFERENCES organizations (id) ON DELETE CASCADE, 
	CONSTRAINT uq_users_organization_id_email UNIQUE (organization_id, email)
);
INSERT INTO "users" VALUES('user-01a20595ac8e8b1dd24da270b25f26f7','org-01a20595ac87fcb593b65107b46d2972','person','Ann','ann@example.org','admin',1790000000);
CREATE INDEX ix_audit_log_organization_id_at ON audit_log (organization_id, effective_at);
CREATE INDEX ix_projects_organization_id ON projects (organization_id);
CREATE INDEX ix_rate_limits_organization_id ON rate_limits (organization_id);
CREATE INDEX ix_api_keys_organization_id ON api_keys (organization_id);
CREATE INDEX ix_api_keys_project_id ON api_keys (project_id);
CREATE INDEX ix_api_keys_user_id ON api_keys (user_id);
CREATE INDEX ix_project_members_user_id ON project_members (user_id);
CREATE INDEX ix_prompt_samples_created_at ON prompt_samples (created_at);
CREATE INDEX ix_prompt_samples_organization_id_created_at ON prompt_samples (organization_id, created_at);
CREATE INDEX ix_prompt_samples_project_id ON prompt_samples (project_id);
CREATE INDEX ix_billed_hours_organization_id_hour ON billed_hours (organization_id, hour_at);
CREATE INDEX ix_usage_events_finished_at ON usage_events (finished_at);
CREATE INDEX ix_usage_events_batch_id ON usage_events (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX ix_usage_events_organization_id_at ON usage_events (organization_id, finished_at);
CREATE INDEX ix_usage_hours_hour_at ON usage_hours (hour_at);
CREATE INDEX ix_budgets_holder_id ON budgets (holder_id);
CREATE INDEX ix_budgets_organization_id ON budgets (organization_id);
CREATE INDEX ix_conversations_changed_at ON conversations (changed_at);
CREATE INDEX ix_conversations_locked_by ON conversations (locked_by);
CREATE INDEX ix_conversations_organization_id_changed_at ON conversations (organization_id, changed_at);
CREATE INDEX ix_conversations_project_id_created_at ON conversations (project_id, created_at);
CREATE INDEX ix_responses_created_at ON responses (created_at);
CREATE INDEX ix_responses_organization_id_created_at ON responses (organization_id, created_at);
CREATE INDEX ix_responses_project_id_created_at ON responses (project_id, created_at);
CREATE INDEX ix_responses_status ON responses (status);
CREATE INDEX ix_stored_completions_created_at ON stored_completions (created_at);
CREATE INDEX ix_stored_completions_organization_id_created_at ON stored_completions (organization_id, created_at);
CREATE INDEX ix_stored_completions_project_id_created_at ON stored_completions (project_id, created_at);
CREATE INDEX ix_conversation_items_conversation_id_position ON conversation_items (conversation_id, position);
CREATE INDEX ix_batches_created_at ON batches (created_at);
CREATE INDEX ix_batches_organization_id_created_at ON batches (organization_id, created_at);
CREATE INDEX ix_batches_project_id_created_at ON batches (project_id, created_at);
CREATE INDEX ix_batches_status ON batches (status);
CREATE INDEX ix_files_expires_at ON files (expires_at);
CREATE INDEX ix_files_created_at ON files (created_at);
CREATE INDEX ix_files_organization_id_created_at ON files (organization_id, created_at);
CREATE INDEX ix_files_project_id_created_at ON files (project_id, created_at);
CREATE INDEX ix_batch_lines_open ON batch_lines (batch_id, model, line) WHERE failed IS NULL;
COMMIT;
