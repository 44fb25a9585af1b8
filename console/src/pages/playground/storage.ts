// Conversations, kept in this browser only, until one signs out: 50 at most of a person, the oldest go first.
import { CHATS, type Keeping } from "../../lib/kept-chats";
import type { Conversation } from "./conversation";

const MOST = 50;
/** Characters of one conversation; a longer one is not kept, and its page says so. */
export const MOST_CHARACTERS = 400_000;

const prefixOf = (who: string): string => `${CHATS}${who}:`;

function read(storage: Keeping, key: string): Conversation | null {
  try {
    const value = JSON.parse(storage.getItem(key) ?? "null") as Conversation | null;
    return value && Array.isArray(value.columns) && value.columns.length > 0 ? value : null;
  } catch {
    return null; // another version's, or somebody edited it
  }
}

export function load(storage: Keeping, who: string, id: string): Conversation | null {
  return read(storage, prefixOf(who) + id);
}

/** Conversations of a person, the latest first. */
export function list(storage: Keeping, who: string): Conversation[] {
  const keys = Array.from({ length: storage.length }, (_, index) => storage.key(index)).filter((key) => key?.startsWith(prefixOf(who)));
  return keys.flatMap((key) => read(storage, key ?? "") ?? []).sort((one, other) => other.at - one.at);
}

/** Keeps a conversation. Others go, oldest first, while there are too many or the browser has no room. False: it is not kept. */
export function save(storage: Keeping, who: string, conversation: Conversation): boolean {
  const text = JSON.stringify(conversation);
  if (text.length > MOST_CHARACTERS) return false;
  const others = list(storage, who).filter(({ id }) => id !== conversation.id);
  for (const old of others.splice(MOST - 1)) remove(storage, who, old.id);
  for (;;) {
    try {
      storage.setItem(prefixOf(who) + conversation.id, text);
      return true;
    } catch {
      const old = others.pop();
      if (!old) return false;
      remove(storage, who, old.id);
    }
  }
}

export function remove(storage: Keeping, who: string, id: string): void {
  storage.removeItem(prefixOf(who) + id);
}
