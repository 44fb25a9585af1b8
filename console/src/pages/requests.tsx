// Requests: the list, and one of them (`requests/ID`).
import { address } from "../lib/address";
import { RequestListPage } from "./requests/list";
import { RequestPage } from "./requests/request";
import "./requests.css";

export default function RequestsPage() {
  const id = address.value.rest[0];
  return id ? <RequestPage key={id} id={id} /> : <RequestListPage />;
}
