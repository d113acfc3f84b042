#include "eval/facts_words.h"

#include <utility>

namespace qkvshare {
namespace {

constexpr std::string_view kPlaceKinds[] = {
    "mill",    "clinic",     "school",     "boatyard", "library",     "observatory", "bakery",  "printing house",
    "station", "orchard",    "quarry",     "archive",  "ferry house", "market hall", "dairy",   "lighthouse",
    "foundry", "greenhouse", "brewery",    "chapel",   "post office", "tannery",     "sawmill", "fire station",
    "weir",    "smokehouse", "glassworks", "vineyard", "museum",      "theatre",     "granary", "pottery"};

constexpr std::string_view kGivenNames[] = {
    "Maren", "Tobias", "Ilse",    "Anselm", "Petra", "Ruben", "Nadia", "Osric", "Lene",    "Hugo",   "Yara",  "Casper",
    "Selma", "Ivo",    "Greta",   "Milan",  "Odile", "Jonas", "Freya", "Bruno", "Carla",   "Emil",   "Vera",  "Leopold",
    "Hanna", "Arlo",   "Sunniva", "Matteo", "Ines",  "Felix", "Dagny", "Oskar", "Rosalie", "Viktor", "Thea",  "Simon",
    "Agnes", "Pavel",  "Lucia",   "Henrik", "Marta", "Anton", "Elin",  "Rufus", "Noor",    "Edgar",  "Sofia", "Klaus"};

constexpr std::string_view kNameStarts[] = {"Tar",  "Osk",  "Bel",  "Cor", "Dun",  "Hal", "Mor",  "Wen",
                                            "Ras",  "Lin",  "Kes",  "Vor", "Ash",  "Pel", "Gar",  "Nor",
                                            "Bram", "Stel", "Quil", "Yar", "Fen",  "Har", "Ost",  "Sel",
                                            "Tor",  "Wick", "Zel",  "Ild", "Krav", "Lor", "Mand", "Thel"};

constexpr std::string_view kFamilyEnds[] = {"vell", "brand", "wick",  "mann",  "sen",  "quist", "low",
                                            "hart", "dahl",  "ridge", "stone", "ger",  "ov",    "ens",
                                            "mark", "berg",  "lind",  "by",    "more", "worth"};

constexpr std::string_view kPlaceEnds[] = {"vale", "ford",  "mouth",  "haven", "stead", "wick",
                                           "holm", "moor",  "bridge", "dale",  "field", "ness",
                                           "burn", "combe", "gate",   "water", "cliff", "thorpe"};

constexpr std::string_view kDays[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
constexpr std::string_view kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                        "July",    "August",   "September", "October", "November", "December"};
constexpr std::string_view kColours[] = {"green",  "crimson", "violet", "grey",  "purple", "turquoise",
                                         "yellow", "brown",   "white",  "black", "pink",   "silver"};
constexpr std::string_view kItems[] = {
    "brass clock",   "copper kettle",  "pine ladder",   "sextant",    "wool blanket", "stone lion",      "steel safe",
    "bicycle",       "weather vane",   "barrel of tar", "globe",      "harmonium",    "fishing net",     "telescope",
    "leather trunk", "sewing machine", "ship's bell",   "typewriter", "hand pump",    "map of the coast"};
constexpr std::string_view kAnimals[] = {"goat", "heron", "mule", "tortoise", "raven", "fox",
                                         "pony", "goose", "swan", "badger",   "cat",   "magpie"};
constexpr std::string_view kJobs[] = {"carpenter",  "surveyor", "nurse",   "locksmith", "gardener",   "mason",
                                      "bookkeeper", "painter",  "plumber", "cook",      "translator", "driver"};

constexpr FactWords kKeeperTemplates[] = {
    {{"{keeper} has run {here} at {at} since {year}.",
      "Since {year}, {here} at {at} has been in the hands of {keeper}."},
     "Since which year has {keeper} run {here} at {at}?",
     "{year}"},
    {{"{Here} at {at} is run by {keeper}, who came from {town}.",
      "{keeper}, who grew up in {town}, is in charge of {here} at {at}."},
     "From which town did the person who runs {here} at {at} come?",
     "{town}"},
    {{"{keeper} took over {here} at {at} from {p}.", "When {p} gave up {here} at {at}, {keeper} took it over."},
     "From whom did {keeper} take over {here} at {at}?",
     "{p}"},
    {{"{Here} at {at} belongs to {keeper}, a trained {job}.", "{keeper}, a {job} by training, owns {here} at {at}."},
     "What was the owner of {here} at {at} trained as?",
     "{job}"},
};

constexpr FactWords kFactTemplates[] = {
    {{"The spare key is kept by {p}, who lives at number {n} on the same road.",
      "Whoever needs the spare key has to ask {p} at number {n}."},
     "Who keeps the spare key of {here} at {at}?",
     "{p}"},
    {{"The building has {n} windows, of which {m} are cracked.", "Of {n} windows in the building, {m} are cracked."},
     "How many windows does {here} at {at} have?",
     "{n}"},
    {{"An inspection in {month} found {m} faults.",
      "There were {m} faults on the list after the inspection in {month}."},
     "How many faults did the inspection of {here} at {at} find?",
     "{m}"},
    {{"Deliveries come every {day} at {time}, and {p} signs for them.",
      "On {day}s at {time} the deliveries arrive; it is {p} who signs for them."},
     "Who signs for deliveries to {here} at {at}?",
     "{p}"},
    {{"It is closed on {day}s, which surprises visitors.", "Visitors who come on a {day} find it closed."},
     "On which day of the week is {here} at {at} closed?",
     "{day}"},
    {{"The door was painted {colour} after the flood of {year}.",
      "After the flood of {year} its door became {colour}."},
     "Which colour was the door of {here} at {at} painted?",
     "{colour}"},
    {{"In the storeroom stands a {item} that nobody has paid for.",
      "A {item}, still not paid for, stands in the storeroom."},
     "What stands in the storeroom of {here} at {at}?",
     "a {item}"},
    {{"The insurance is filed under {code} and ends in {month}.", "Its insurance, number {code}, runs out in {month}."},
     "What is the number of the insurance of {here} at {at}?",
     "{code}"},
    {{"{p} and {q} have been engaged since they met there in {month}.",
      "It was there, in {month}, that {p} met {q}; they are engaged now."},
     "To whom is {p} engaged?",
     "{q}"},
    {{"The water bill was {n} crowns last year.", "Last year {n} crowns were spent on water."},
     "How many crowns was last year's water bill of {here} at {at}?",
     "{n}"},
    {{"A {animal} has lived in the yard for {m} years.", "For {m} years the yard has been home to a {animal}."},
     "Which animal lives in the yard of {here} at {at}?",
     "a {animal}"},
    {{"{p}, the oldest worker, is {m} months from retirement.", "In {m} months {p}, the oldest worker, will retire."},
     "Who is the oldest worker of {here} at {at}?",
     "{p}"},
    {{"The night shift begins at {time} and has {m} people.",
      "There are {m} people in the night shift, which begins at {time}."},
     "At what time does the night shift of {here} at {at} begin?",
     "{time}"},
    {{"Its roof was repaired by a firm from {town} for {n} crowns.",
      "A firm from {town} repaired the roof and asked {n} crowns."},
     "From which town was the firm that repaired the roof of {here} at {at}?",
     "{town}"},
    {{"The alarm code is {n}, and only {p} may change it.", "Only {p} may change the alarm code, which is {n}."},
     "What is the alarm code of {here} at {at}?",
     "{n}"},
    {{"A letter from {p} about the {colour} wall was never answered.",
      "Nobody has answered the letter that {p} wrote about the {colour} wall."},
     "Whose letter to {here} at {at} was never answered?",
     "{p}"},
    {{"The telephone number ends in {n}.", "Its telephone number has {n} at the end."},
     "Which digits does the telephone number of {here} at {at} end in?",
     "{n}"},
    {{"The {item} in the hall was a gift of {p} in {year}.", "In {year} {p} gave the {item} that is in the hall."},
     "Who gave the {item} in the hall of {here} at {at}?",
     "{p}"},
    {{"For the feast in {month} {n} loaves were ordered.", "They ordered {n} loaves for the feast in {month}."},
     "How many loaves did {here} at {at} order for the feast?",
     "{n}"},
    {{"{p}'s brother {q} sends wood from {town} every spring.",
      "Every spring wood comes from {town}, sent by {q}, the brother of {p}."},
     "What is the name of {p}'s brother?",
     "{q}"},
    {{"The fuse box is behind the {colour} cupboard.", "Behind the {colour} cupboard one finds the fuse box."},
     "Behind which cupboard is the fuse box of {here} at {at}?",
     "the {colour} one"},
    {{"The nearest well is {n} steps to the north.", "One has to walk {n} steps north to the nearest well."},
     "How many steps is it from {here} at {at} to the nearest well?",
     "{n}"},
    {{"{p} has been its {job} for {m} years, without a contract.",
      "Without a contract, {p} has been the {job} for {m} years."},
     "Who is the {job} of {here} at {at}?",
     "{p}"},
    {{"The cellar is let to a club from {town}.", "A club from {town} rents the cellar."},
     "From which town is the club that rents the cellar of {here} at {at}?",
     "{town}"},
    {{"Lot {code} was sent back twice before {p} accepted it.", "It took {p} three tries to accept lot {code}."},
     "Which lot did {p} accept in the end?",
     "{code}"},
    {{"The lease dates from {year}, and the rent is {n} crowns a month.",
      "Rent is {n} crowns a month, by a lease of {year}."},
     "How many crowns a month is the rent of {here} at {at}?",
     "{n}"},
    {{"Lost property goes to {p} on the first {day} of the month.",
      "On the first {day} of each month {p} collects lost property."},
     "Who gets lost property from {here} at {at}?",
     "{p}"},
    {{"The garden has {m} pear trees and one bench.", "Besides one bench there are {m} pear trees in the garden."},
     "How many pear trees are in the garden of {here} at {at}?",
     "{m}"},
    {{"The first owner, {p}, lost it in a game of cards in {year}.",
      "In {year} the first owner, {p}, lost it in a game of cards."},
     "Who was the first owner of {here} at {at}?",
     "{p}"},
    {{"A {colour} flag means that the road to {town} is closed.",
      "When the road to {town} is closed a {colour} flag is raised."},
     "The road to which town is closed when {here} at {at} raises a {colour} flag?",
     "{town}"},
    {{"The boiler, model {code}, is checked each {month}.",
      "Each {month} somebody checks the boiler, which is model {code}."},
     "Which model is the boiler of {here} at {at}?",
     "{code}"},
    {{"{p} wants to replace the {item} but {q} is against it.",
      "Though {q} is against it, {p} wants to replace the {item}."},
     "Who is against replacing the {item} of {here} at {at}?",
     "{q}"},
    {{"The last count gave {n} chairs, {m} fewer than the list says.",
      "There are {n} chairs by the last count, {m} fewer than on the list."},
     "How many chairs did the last count at {here} at {at} give?",
     "{n}"},
    {{"The bus to {town} leaves from the gate at {time}.", "At {time} the bus to {town} leaves from the gate."},
     "At what time does the bus to {town} leave from {here} at {at}?",
     "{time}"},
    {{"The apprentice, {p}, sleeps above the office.", "Above the office sleeps {p}, the apprentice."},
     "What is the name of the apprentice at {here} at {at}?",
     "{p}"},
    {{"The dog that guards it is called {town}, after the village where it was found.",
      "Its guard dog has the name {town}, after the village where it was found."},
     "What is the name of the dog that guards {here} at {at}?",
     "{town}"},
    {{"The flood mark on the wall is {n} centimetres high.", "On the wall a flood mark shows {n} centimetres."},
     "How many centimetres high is the flood mark of {here} at {at}?",
     "{n}"},
    {{"The stoker, {p}, is a cousin of {other}.", "{p}, the stoker, is a cousin of {other}."},
     "Whose cousin is the stoker of {here} at {at}?",
     "{other}"},
    {{"{other} has lent it a {item} until {month}.", "Until {month} it has the use of a {item} that {other} lent."},
     "Who has lent {here} at {at} a {item}?",
     "{other}"},
    {{"Debts of {n} crowns to {p} are to be paid by {month}.",
      "By {month} {p} must have the {n} crowns that are owed."},
     "To whom does {here} at {at} owe money?",
     "{p}"},
};

constexpr std::string_view kFillers[] = {
    "It rained.",
    "Dusk fell.",
    "Birds sang.",
    "All was calm.",
    "The tide was out.",
    "A lamp was burning.",
    "Snow lay on the roof.",
    "The view is pleasant.",
    "Little has changed since.",
    "Nobody was in a hurry.",
    "In the morning there is often fog, and the lamps stay on until it lifts.",
    "Most visitors stay for less than an hour and leave by the lower road.",
    "The floor creaks, but it is dry and clean.",
    "People in the neighbourhood speak of it with some pride.",
    "There was talk of an extension once, and then nothing came of it.",
    "On warm days the doors are left open.",
    "The path is steep and better taken slowly.",
    "Bread and soup are served at noon.",
    "The heating is old and loud, yet it has never failed in a winter.",
    "Some of the papers were wet and could not be read.",
    "A second visit would be useful.",
    "The wind comes from the sea for most of the year.",
    "It smells of wood and oil.",
    "Repairs are done when there is money, which is seldom.",
    "The clerk was friendly and made tea before any question was asked.",
    "What was said there could not be checked in every point.",
    "Children are welcome, though there is not much for them to do.",
    "The stairs have a new rail.",
    "Behind the house the ground is soft, and carts are left on the road.",
    "Everything was in its place.",
    "A few photographs on the wall show how it looked in earlier days.",
    "The rooms are small and full of light.",
    "The accounts are kept by hand, in a neat script.",
    "Complaints are rare.",
    "After the harvest there is more to do, and strangers are asked to help.",
    "One hears the trains from there, but one does not see them.",
    "There is no sign at the road, so that many pass by without noticing.",
    "The survey took the whole afternoon and ended in the dark.",
    "Salt has eaten into the hinges, and the gate no longer shuts.",
    "In spring the lower rooms are aired for a week.",
    "The bell still works.",
    "Letters are brought up from the village in a basket.",
    "Several neighbours gave the same account, almost word for word.",
    "It is a quiet place, and those who work there seem to like it.",
    "The maps of the district show it in the wrong spot.",
    "No photographs were allowed inside.",
};

}  // namespace

std::span<const FactWords> FactTemplates() { return kFactTemplates; }
std::span<const FactWords> KeeperTemplates() { return kKeeperTemplates; }
std::span<const std::string_view> FillerSentences() { return kFillers; }
std::span<const std::string_view> PlaceKinds() { return kPlaceKinds; }
std::span<const std::string_view> GivenNames() { return kGivenNames; }
std::span<const std::string_view> NameStarts() { return kNameStarts; }
std::span<const std::string_view> FamilyEnds() { return kFamilyEnds; }
std::span<const std::string_view> PlaceEnds() { return kPlaceEnds; }

std::span<const std::string_view> SlotWords(std::string_view slot) {
  const std::pair<std::string_view, std::span<const std::string_view>> kWords[] = {
      {"day", kDays}, {"month", kMonths}, {"colour", kColours}, {"item", kItems}, {"animal", kAnimals}, {"job", kJobs}};
  for (const auto& [name, words] : kWords) {
    if (name == slot) return words;
  }
  return {};
}

}  // namespace qkvshare
