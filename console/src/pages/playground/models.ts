// Models that can be asked: served models and adapters, as `GET /v1/models` lists them.

export interface Model {
  id: string;
  parent: string | null;
  aliases: string[];
  kind: string | null;
  ready: boolean;
  state: string;
  max_model_len: number | null;
  default_sampling_params: Record<string, number | null> | null;
}

/** Those that generate, or may: of one that starts the kind is not known yet. */
export function generating(models: Model[]): Model[] {
  return models.filter(({ kind }) => kind === null || kind === "generate");
}

export function named(models: Model[], name: string): Model | undefined {
  return models.find((model) => model.id === name || model.aliases.includes(name));
}

/** The model of a new conversation: the one that the address names, else the first that is ready. */
export function firstModel(models: Model[], wanted: string): string {
  return (named(models, wanted) ?? models.find(({ ready }) => ready) ?? models[0])?.id ?? "";
}

export function labelOf(model: Model): string {
  const of = model.parent ? `, adapter of ${model.parent}` : "";
  return `${model.id}${of}${model.ready ? "" : ` (${model.state})`}`;
}

/** Prompts to begin with; the first one suits the model that Kvarn brings along. */
export function suggestionsFor(model: string): string[] {
  const own = ["What is Kvarn?", "What is a KV cache?", "Write a short story about a mill."];
  return model.startsWith("kvarn-demo") ? own : ["Explain in three sentences why the sky is blue.", "Write a Python function that merges two sorted lists.", "Name five uses of a language model in a small company."];
}
