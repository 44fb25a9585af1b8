// Data of a view: loading keeps the old data, an error keeps it too and says how old it is.
import { useEffect, useMemo } from "preact/hooks";
import { signal, type Signal } from "@preact/signals";
import { ApiError, call, withQuery } from "./api";

export interface Resource<T> {
  data: Signal<T | undefined>;
  error: Signal<ApiError | null>;
  loading: Signal<boolean>;
  /** When `data` came, UNIX seconds; 0 before it has. */
  at: Signal<number>;
  reload: () => void;
}

export function asApiError(failure: unknown): ApiError {
  return failure instanceof ApiError ? failure : new ApiError(String(failure), 0, "console", "");
}

/** Loads `path` and again whenever it changes; nothing while it is null. Older answers never replace newer ones. With a
 * `body` it is asked for by POST, and again whenever the body has become another one. */
export function useResource<T>(path: string | null, body?: unknown): Resource<T> {
  const resource = useMemo(() => {
    let running: AbortController | null = null;
    const self = {
      data: signal<T | undefined>(undefined),
      error: signal<ApiError | null>(null),
      loading: signal(false),
      at: signal(0),
      path: null as string | null,
      body: undefined as unknown,
      stop: () => running?.abort(),
      reload: () => void self.load(),
      async load(): Promise<void> {
        running?.abort();
        if (self.path === null) return;
        const own = (running = new AbortController());
        self.loading.value = true;
        try {
          const asked = self.body === undefined ? {} : ({ method: "POST", body: self.body } as const);
          const data = await call<T>(self.path, { signal: own.signal, ...asked });
          if (own.signal.aborted) return;
          self.data.value = data;
          self.at.value = Date.now() / 1000;
          self.error.value = null;
        } catch (failure) {
          if (own.signal.aborted) return;
          self.error.value = asApiError(failure);
        }
        self.loading.value = false;
      },
    };
    return self;
  }, []);
  useEffect(() => {
    resource.path = path;
    resource.body = body;
    resource.reload();
    return resource.stop;
  }, [path, JSON.stringify(body)]);
  return resource;
}

/** A page of rows, as the gateway lists things. */
export interface Listed<Row> {
  data: Row[];
  has_more?: boolean;
  last_id?: string | null;
  /** Lists whose order is not that of ids name the place of the next page; null: there is none. */
  next?: string | null;
}

export interface Rows<Row> extends Resource<Listed<Row>> {
  /** Loads the rows after these and adds them. */
  more: () => void;
}

export const ROWS_A_VIEW = 50;

/** Rows of a list route (`?after=&limit=`), a view at a time. */
export function useRows<Row>(path: string | null, limit = ROWS_A_VIEW): Rows<Row> {
  const resource = useResource<Listed<Row>>(path === null ? null : withQuery(path, { limit }));
  const more = (): void => {
    const have = resource.data.value;
    const after = have?.next ?? (have?.has_more ? have.last_id : null);
    if (path === null || !have || !after || resource.loading.value) return;
    resource.loading.value = true;
    call<Listed<Row>>(withQuery(path, { limit, after }))
      .then((next) => {
        if (resource.data.value === have) {
          const { has_more, last_id, next: place } = next;
          resource.data.value = { ...have, has_more, last_id, next: place, data: [...have.data, ...next.data] };
        }
      })
      .catch((failure: unknown) => {
        resource.error.value = asApiError(failure);
      })
      .finally(() => {
        resource.loading.value = false;
      });
  };
  return { ...resource, more };
}
