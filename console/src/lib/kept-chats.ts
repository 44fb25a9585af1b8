// Conversations of the playground that this browser keeps, as far as the frame has to know them.

/** Beginning of their names in the browser's storage. */
export const CHATS = "kvarn-chat:";

/** The part of `Storage` that is used. */
export type Keeping = Pick<Storage, "getItem" | "setItem" | "removeItem" | "key" | "length">;

/** Forgets those of everybody: whoever sits here next reads none. */
export function forgetChats(storage: Keeping): void {
  const names = Array.from({ length: storage.length }, (_, index) => storage.key(index)).filter((name) => name?.startsWith(CHATS));
  for (const name of names) if (name) storage.removeItem(name);
}
