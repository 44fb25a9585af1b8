// Conversations that this browser keeps.
import { Empty, Time } from "../../components/basics";
import { ask } from "../../components/dialog";
import { toast } from "../../components/toast";
import { address, formatAddress, go, href, withChanges } from "../../lib/address";
import { count } from "../../lib/format";
import { session } from "../../lib/session";
import { titleOf, type Conversation } from "./conversation";
import { conversation, kept, who } from "./state";
import * as storage from "./storage";

/** Conversations, the latest first; none where the browser's storage is switched off. */
function keptConversations(): Conversation[] {
  try {
    return storage.list(localStorage, who());
  } catch {
    return [];
  }
}

export function History() {
  void kept.value; // drawn again when one is kept or deleted
  const all = keptConversations();
  const remove = (of: Conversation): void => {
    storage.remove(localStorage, who(), of.id);
    kept.value += 1;
    if (conversation.value?.id === of.id) go(formatAddress("playground", [], withChanges(address.value.query, { history: "1" })));
    toast(`Deleted "${titleOf(of)}".`, { undo: () => { storage.save(localStorage, who(), of); kept.value += 1; } });
  };
  const removeAll = async (): Promise<void> => {
    if (!(await ask({ title: `Delete ${count(all.length, "conversation")}?`, text: "They are kept in this browser only, and are gone then.", action: "Delete", danger: true }))) return;
    for (const each of all) storage.remove(localStorage, who(), each.id);
    kept.value += 1;
    go(href("playground"));
  };
  return (
    <section class="pg-history" aria-label="Conversations">
      {all.length === 0 ? <Empty what="Conversations are listed here once something was asked. This browser keeps the latest 50; the server keeps none." /> : (
        <>
          <ul>
            {all.map((each) => (
              <li key={each.id}>
                <a class="cut" href={href(`playground/${each.id}`, { history: "1" })} aria-current={each.id === conversation.value?.id ? "true" : undefined}>{titleOf(each)}</a>
                <span class="quiet"><Time at={each.at} /></span>
                <button type="button" class="copy" aria-label={`Delete ${titleOf(each)}`} onClick={() => remove(each)}>Delete</button>
              </li>
            ))}
          </ul>
          <div class="row">
            <button type="button" class="button small" onClick={() => void removeAll()}>Delete all</button>
            <span class="quiet">Kept in this browser only{session.value?.open ? "" : ", until you sign out"}.</span>
          </div>
        </>
      )}
    </section>
  );
}
